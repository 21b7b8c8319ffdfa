#include "delay_proxy.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <memory>

#include "raw_tcp.h"

namespace kvmend::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kBlockBytes = 256U << 10U;
constexpr std::size_t kMaxQueued = 256U << 20U;  // in flight, of one direction

struct Block {
  std::unique_ptr<std::byte[]> data = std::make_unique<std::byte[]>(kBlockBytes);
  std::size_t size = 0;
  std::size_t sent = 0;
  Clock::time_point due;
};

/// Blocks that have been used, to be used again: fresh ones would cost page faults.
class Blocks {
 public:
  Block take() {
    if (free_.empty()) return {};
    Block block = std::move(free_.back());
    free_.pop_back();
    block.size = block.sent = 0;
    return block;
  }
  void give(Block block) { free_.push_back(std::move(block)); }

 private:
  std::vector<Block> free_;
};

/// One direction of one connection.
class Direction {
 public:
  Direction(int from, int to, Blocks& blocks) : from_(from), to_(to), blocks_(blocks) {}

  [[nodiscard]] bool over() const { return ended_ && queue_.empty(); }
  [[nodiscard]] bool wants_read() const { return !ended_ && queued_ < kMaxQueued; }
  [[nodiscard]] bool is_due(Clock::time_point now) const {
    return !queue_.empty() && queue_.front().due <= now;
  }
  [[nodiscard]] Clock::time_point due() const {
    return queue_.empty() ? Clock::time_point::max() : queue_.front().due;
  }
  [[nodiscard]] int from() const { return from_; }
  [[nodiscard]] int to() const { return to_; }

  void read(std::chrono::microseconds delay) {
    Block block = blocks_.take();
    const ssize_t n = ::recv(from_, block.data.get(), kBlockBytes, MSG_DONTWAIT);
    if (n > 0) {
      block.size = static_cast<std::size_t>(n);
      block.due = Clock::now() + delay;
      queued_ += block.size;
      queue_.push_back(std::move(block));
      return;
    }
    ended_ = n == 0 || (errno != EAGAIN && errno != EINTR);
    blocks_.give(std::move(block));
  }
  void write(Clock::time_point now) {
    while (is_due(now)) {
      Block& block = queue_.front();
      const ssize_t n = ::send(to_, block.data.get() + block.sent, block.size - block.sent,
                               MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n < 0) {
        if (errno == EAGAIN || errno == EINTR) return;
        queue_.clear();
        ended_ = true;
        return;
      }
      block.sent += static_cast<std::size_t>(n);
      queued_ -= static_cast<std::size_t>(n);
      if (block.sent < block.size) return;
      blocks_.give(std::move(block));
      queue_.pop_front();
    }
  }

 private:
  int from_;
  int to_;
  Blocks& blocks_;
  std::deque<Block> queue_;
  std::size_t queued_ = 0;
  bool ended_ = false;
};

[[noreturn]] void serve(const std::vector<int>& listeners,
                        const std::vector<std::uint16_t>& targets,
                        std::chrono::microseconds delay) {
  Blocks blocks;
  std::deque<Direction> directions;
  std::vector<pollfd> polled;
  while (true) {
    polled.clear();
    for (const int listener : listeners) polled.push_back({listener, POLLIN, 0});
    const auto now = Clock::now();
    auto next = Clock::time_point::max();
    for (const Direction& d : directions) {
      const bool due = d.is_due(now);
      if (!due) next = std::min(next, d.due());
      polled.push_back({d.from(), static_cast<short>(d.wants_read() ? POLLIN : 0), 0});
      polled.push_back({d.to(), static_cast<short>(due ? POLLOUT : 0), 0});
    }
    timespec wait{};
    const bool forever = next == Clock::time_point::max();
    if (!forever) {
      const auto left = std::max(next - now, Clock::duration::zero());
      wait.tv_nsec = std::chrono::duration_cast<std::chrono::nanoseconds>(left).count();
    }
    ::ppoll(polled.data(), polled.size(), forever ? nullptr : &wait, nullptr);
    std::size_t at = listeners.size();
    for (Direction& d : directions) {
      if ((polled[at++].revents & (POLLIN | POLLHUP | POLLERR)) != 0 && d.wants_read())
        d.read(delay);
      ++at;
      d.write(Clock::now());
      if (d.over()) ::shutdown(d.to(), SHUT_WR);
    }
    for (std::size_t i = 0; i < listeners.size(); ++i) {
      if ((polled[i].revents & POLLIN) == 0) continue;
      const int in = RawTcp::accept_one(listeners[i]);
      const int out = RawTcp::connect_to(targets[i]);
      if (in < 0 || out < 0) std::exit(1);
      directions.emplace_back(in, out, blocks);
      directions.emplace_back(out, in, blocks);
    }
  }
}

}  // namespace

pid_t fork_delay_proxy(const std::vector<std::uint16_t>& targets, std::chrono::microseconds one_way,
                       std::vector<std::uint16_t>& ports) {
  std::vector<int> listeners;
  ports.assign(targets.size(), 0);
  for (std::uint16_t& port : ports) listeners.push_back(RawTcp::listen_on_loopback(port));
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    serve(listeners, targets, one_way);
  }
  for (const int listener : listeners) close(listener);
  return child;
}

}  // namespace kvmend::bench
