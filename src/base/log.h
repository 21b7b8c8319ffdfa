// Logging through spdlog, with a limiter for messages that a peer can provoke.
#pragma once

#include <spdlog/spdlog.h>

#include <atomic>
#include <chrono>
#include <cstdint>

#include "base/time.h"

namespace kvmend {

/// Lets at most one message per `interval` through and counts the rest. Any thread.
class LogLimiter {
 public:
  explicit constexpr LogLimiter(Duration interval) : interval_(interval) {}

  /// True when a message may be written now. `suppressed` receives how many were held back since.
  [[nodiscard]] bool allow(Time now, std::uint64_t& suppressed) {
    std::int64_t next = next_.load(std::memory_order_relaxed);
    const std::int64_t t = now.time_since_epoch().count();
    if (t < next || !next_.compare_exchange_strong(next, t + interval_.count())) {
      held_back_.fetch_add(1, std::memory_order_relaxed);
      return false;
    }
    suppressed = held_back_.exchange(0, std::memory_order_relaxed);
    return true;
  }

 private:
  Duration interval_;
  std::atomic<std::int64_t> next_{0};
  std::atomic<std::uint64_t> held_back_{0};
};

}  // namespace kvmend
