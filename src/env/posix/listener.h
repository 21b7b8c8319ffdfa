// A listening socket on a PosixEventLoop.
#pragma once

#include "env/network.h"
#include "env/posix/event_loop.h"
#include "env/posix/socket.h"

namespace kvmend::env::posix {

/// Loop thread. Not to outlive its loop.
class PosixListener final : public Listener, private IoWatcher {
 public:
  /// Errors: as `Network::listen`.
  static Result<std::unique_ptr<Listener>> open(PosixEventLoop& loop, const Address& at,
                                                const StreamOptions& options,
                                                AcceptHandler* handler);
  ~PosixListener() override;
  [[nodiscard]] const Address& address() const override { return address_; }

 private:
  PosixListener(PosixEventLoop& loop, GuardedFd fd, Address address, StreamOptions options,
                AcceptHandler* handler);
  void on_io(std::uint32_t events) override;
  void on_io_failed() override;
  void pause(int sys_errno);

  PosixEventLoop& loop_;
  GuardedFd fd_;
  const Address address_;
  const StreamOptions options_;
  AcceptHandler* const handler_;
  IoId io_;
  ScopedTimer resume_;
};

}  // namespace kvmend::env::posix
