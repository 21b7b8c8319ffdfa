// The real loop, as the local transport wants it.
#pragma once

#include <sys/epoll.h>

#include <memory>
#include <unordered_map>

#include "env/posix/event_loop.h"
#include "transport/local/fd_loop.h"

namespace kvmend::runtime {

/// Loop thread. The loop must outlive it.
class PosixFds final : public transport::local::FdLoop {
 public:
  explicit PosixFds(env::posix::PosixEventLoop& loop) : loop_(loop) {}
  ~PosixFds() override {
    for (const auto& [id, watcher] : watchers_) loop_.unwatch({id});
  }

  Result<std::uint64_t> watch(int fd, std::function<void()> on_readable) override {
    auto watcher = std::make_shared<Watcher>();
    watcher->on_readable = std::move(on_readable);
    const auto id = loop_.watch(fd, EPOLLIN | EPOLLRDHUP, watcher.get());
    if (!id) return std::unexpected(id.error());
    watchers_.emplace(id->value, std::move(watcher));
    return id->value;
  }
  void unwatch(std::uint64_t id) override {
    loop_.unwatch({id});
    watchers_.erase(id);
  }

 private:
  struct Watcher final : env::posix::IoWatcher, std::enable_shared_from_this<Watcher> {
    std::function<void()> on_readable;
    void on_io(std::uint32_t) override {
      const auto keep = shared_from_this();  // it may unwatch itself
      on_readable();
    }
  };

  env::posix::PosixEventLoop& loop_;
  std::unordered_map<std::uint64_t, std::shared_ptr<Watcher>> watchers_;
};

}  // namespace kvmend::runtime
