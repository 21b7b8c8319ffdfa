// Time as the code sees it: a monotonic time point that only an injected clock can produce.
#pragma once

#include <chrono>

namespace kvmend {

/// Tag of kvmend's time points. It has no `now()` on purpose: time comes from `env::Clock` or as an
/// argument, so that a simulation can own it.
struct MonotonicClock {
  using duration = std::chrono::nanoseconds;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<MonotonicClock>;
  static constexpr bool is_steady = true;
};

using Duration = std::chrono::nanoseconds;
using Time = MonotonicClock::time_point;

/// "Never": later than every real time point.
inline constexpr Time kForever = Time::max();

/// `from + d`, saturating at `kForever`.
[[nodiscard]] constexpr Time saturating_add(Time from, Duration d) {
  if (d >= Duration::zero() && from > kForever - d) return kForever;
  return from + d;
}

[[nodiscard]] inline double to_seconds(Duration d) {
  return std::chrono::duration<double>(d).count();
}

}  // namespace kvmend
