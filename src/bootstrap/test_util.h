// For tests: a clock and a waiter in virtual time, and ready-made registrations.
#pragma once

#include <atomic>
#include <string>

#include "bootstrap/records.h"
#include "bootstrap/waiter.h"
#include "env/event_loop.h"

namespace kvmend::bootstrap::testing {

/// Any thread.
class ManualClock final : public env::Clock {
 public:
  [[nodiscard]] Time now() const override { return Time(Duration(nanoseconds_.load())); }
  void advance(Duration by) { nanoseconds_ += by.count(); }

 private:
  std::atomic<std::int64_t> nanoseconds_{1'000'000'000};
};

/// Waits by moving the clock.
class VirtualWaiter final : public Waiter {
 public:
  explicit VirtualWaiter(ManualClock& clock) : clock_(clock) {}
  bool wait(Duration pause) override {
    ++waits;
    clock_.advance(pause);
    return waits < cancel_after;
  }
  int waits = 0;
  int cancel_after = 1'000'000;

 private:
  ManualClock& clock_;
};

/// Rank `tp` of `tp_size`, at port 7000 + tp, as process number `incarnation`.
inline Registration sample(std::int64_t tp, std::int64_t tp_size, std::uint64_t incarnation = 0) {
  Registration registration;
  registration.topology.attn_tp_size = tp_size;
  registration.topology.page_size = 64;
  registration.topology.kv_cache_dtype = "bfloat16";
  registration.key.tp = tp;
  registration.rank.rank_ip = "127.0.0.1";
  registration.rank.rank_port = static_cast<std::uint16_t>(7000 + tp);
  registration.rank.incarnation = Incarnation(incarnation);
  if (incarnation != 0) {
    registration.topology.backend = "kvmend";
    registration.topology.kvmend_version = "0.1.0";
    registration.rank.session_id = "127.0.0.1:" + std::to_string(9000 + tp);
  }
  return registration;
}

}  // namespace kvmend::bootstrap::testing
