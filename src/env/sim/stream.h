// The application's handles of simulated sockets.
#pragma once

#include <cstdint>
#include <memory>

#include "env/network.h"
#include "env/sim/endpoint.h"
#include "env/sim/host.h"
#include "env/sim/loop.h"
#include "env/sim/network.h"

namespace kvmend::env::sim {

/// Single-threaded. Behaves as the real stream does, with short reads and writes by the seed.
class SimStream final : public Stream, private IoSource {
 public:
  SimStream(SimNetwork& network, std::shared_ptr<Endpoint> endpoint, StreamHandler* handler);
  ~SimStream() override;

  IoResult readv(std::span<const iovec> into) override;
  IoResult writev(std::span<const iovec> from) override;
  void want_read(bool on) override;
  void want_write(bool on) override;
  void set_handler(StreamHandler* handler) override;
  [[nodiscard]] std::size_t unacknowledged_bytes() const override;
  void reset_on_close() override { reset_on_close_ = true; }
  [[nodiscard]] const Address& peer() const override { return endpoint_->remote(); }

  /// The process was killed: the kernel closes the connection, the handle stays without effect.
  void cut_off(bool reset);
  [[nodiscard]] std::uint64_t number() const { return number_; }

 private:
  [[nodiscard]] bool is_ready() const override;
  void on_io() override;
  void break_off(int sys_errno, const char* doing);
  IoResult broken(int sys_errno);
  [[nodiscard]] bool can_read() const;
  void stir() { network_.loop().stir(source_); }

  SimNetwork& network_;
  const std::shared_ptr<Endpoint> endpoint_;
  StreamHandler* handler_;
  bool connecting_;
  bool broken_ = false;
  bool cut_off_ = false;
  bool eof_ = false;
  bool want_read_ = true;
  bool want_write_ = false;
  bool reset_on_close_ = false;
  bool read_something_ = false;
  const std::uint64_t source_;
  const std::uint64_t number_;
};

class SimListener final : public Listener, private IoSource {
 public:
  SimListener(SimNetwork& network, ListeningPort* port, Address address, AcceptHandler* handler);
  ~SimListener() override;
  [[nodiscard]] const Address& address() const override { return address_; }

  void cut_off();
  void stir() { network_.loop().stir(source_); }
  [[nodiscard]] std::uint64_t number() const { return source_; }

 private:
  [[nodiscard]] bool is_ready() const override;
  void on_io() override;

  SimNetwork& network_;
  ListeningPort* port_;  // null once cut off
  const Address address_;
  AcceptHandler* const handler_;
  ScopedTimer retry_;  // out of descriptors
  const std::uint64_t source_;
};

}  // namespace kvmend::env::sim
