// TCP over the machine's sockets, and the bundle that makes up a real environment.
#pragma once

#include <memory>

#include "env/network.h"
#include "env/posix/clock.h"
#include "env/posix/event_loop.h"

namespace kvmend::env::posix {

/// Loop thread. It, its streams and its listeners must go before the loop.
class PosixNetwork final : public Network {
 public:
  explicit PosixNetwork(PosixEventLoop& loop) : loop_(loop) {}

  Result<std::unique_ptr<Listener>> listen(const Address& at, const StreamOptions& options,
                                           AcceptHandler* handler) override;
  Result<std::unique_ptr<Stream>> connect(const Address& to, const StreamOptions& options,
                                          StreamHandler* handler) override;

 private:
  PosixEventLoop& loop_;
};

/// A loop with its random numbers and sockets. Loop thread, but for what the loop says otherwise.
class PosixEnv {
 public:
  /// Errors: `kResourceExhausted`.
  static Result<std::unique_ptr<PosixEnv>> create(const EventLoopOptions& options = {});
  [[nodiscard]] Env env() { return {*loop_, random_, network_}; }
  [[nodiscard]] PosixEventLoop& loop() { return *loop_; }

 private:
  explicit PosixEnv(std::unique_ptr<PosixEventLoop> loop)
      : loop_(std::move(loop)), network_(*loop_) {}

  std::unique_ptr<PosixEventLoop> loop_;
  PosixRandom random_;
  PosixNetwork network_;
};

}  // namespace kvmend::env::posix
