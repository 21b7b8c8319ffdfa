// One TCP connection on a PosixEventLoop.
#pragma once

#include <cstdint>

#include "env/network.h"
#include "env/posix/event_loop.h"
#include "env/posix/socket.h"

namespace kvmend::env::posix {

/// Loop thread. Not to outlive its loop.
class PosixStream final : public Stream, private IoWatcher {
 public:
  enum class State : std::uint8_t { kConnecting, kConnected, kBroken };

  PosixStream(PosixEventLoop& loop, GuardedFd fd, Address peer, State state,
              StreamHandler* handler);
  ~PosixStream() override;

  /// Begins to watch an outgoing connection. `connect_errno` is the errno of a connect(2) that
  /// failed at once; it is reported from the loop, like every other outcome.
  Status start_connecting(int connect_errno);

  IoResult readv(std::span<const iovec> into) override;
  IoResult writev(std::span<const iovec> from) override;
  void want_read(bool on) override;
  void want_write(bool on) override;
  void set_handler(StreamHandler* handler) override;
  [[nodiscard]] std::size_t unacknowledged_bytes() const override;
  void reset_on_close() override;
  [[nodiscard]] const Address& peer() const override { return peer_; }

 private:
  void on_io(std::uint32_t events) override;
  void on_io_failed() override;
  void finish_connecting();
  void break_off(int sys_errno, std::string_view doing);
  IoResult broken(int sys_errno);
  void update_interest();
  [[nodiscard]] std::uint32_t interest() const;

  PosixEventLoop& loop_;
  GuardedFd fd_;
  const Address peer_;
  StreamHandler* handler_;
  State state_;
  bool want_read_ = true;
  bool want_write_ = false;
  bool eof_ = false;
  bool read_something_ = false;  // since the last event
  IoId io_;
  std::uint32_t watched_events_ = 0;
  ScopedTimer early_failure_;
};

}  // namespace kvmend::env::posix
