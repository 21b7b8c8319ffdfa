// Readiness of descriptors, as this transport needs it of the loop. The composition root implements
// it over the real one.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "kvmend/status.h"

namespace kvmend::transport::local {

/// Loop thread.
class FdLoop {
 public:
  virtual ~FdLoop() = default;
  /// Runs `on_readable` whenever `fd` is readable or its other end has gone, until `unwatch`, which
  /// may be called inside. Never returns 0. Errors: kResourceExhausted.
  virtual Result<std::uint64_t> watch(int fd, std::function<void()> on_readable) = 0;
  virtual void unwatch(std::uint64_t id) = 0;
};

/// Ends a watch with its owner. Declare it after the descriptor: it goes first. Loop thread.
class FdWatch {
 public:
  FdWatch() = default;
  FdWatch(const FdWatch&) = delete;
  FdWatch& operator=(const FdWatch&) = delete;
  ~FdWatch() { stop(); }

  Status start(FdLoop& loop, int fd, std::function<void()> on_readable) {
    stop();
    const auto id = loop.watch(fd, std::move(on_readable));
    if (!id) return id.error();
    loop_ = &loop;
    id_ = *id;
    return Status::ok();
  }
  void stop() {
    if (id_ != 0) loop_->unwatch(std::exchange(id_, 0));
  }

 private:
  FdLoop* loop_ = nullptr;
  std::uint64_t id_ = 0;
};

}  // namespace kvmend::transport::local
