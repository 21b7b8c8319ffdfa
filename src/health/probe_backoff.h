// When one failed session wants its next probe. Pure.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/time.h"
#include "health/options.h"

namespace kvmend::health {

/// `nominal` moved by up to ± `percent` %, by the caller's uniformly random bits.
[[nodiscard]] constexpr Duration jittered(Duration nominal, std::uint32_t percent,
                                          std::uint64_t random) {
  if (percent == 0) return nominal;
  // A number in [-1000, 1000] thousandths; dividing first keeps any duration from overflowing.
  const auto unit = static_cast<std::int64_t>(random % 2'001) - 1'000;
  const std::int64_t range = nominal.count() / 100 * percent;
  return nominal + Duration(range / 1'000 * unit + range % 1'000 * unit / 1'000);
}

/// The doubling interval of a failed session. One owner thread.
class ProbeBackoff {
 public:
  explicit ProbeBackoff(const HealthOptions& options) : options_(&options) { reset(); }

  /// Back to the first delay: the session is healthy.
  void reset() { nominal_ = options_->probe_first_delay; }

  /// The next interval, with jitter, never above `probe_max_interval`; then doubles.
  [[nodiscard]] Duration next(std::uint64_t random) {
    const Duration interval = jittered(nominal_, options_->probe_jitter_percent, random);
    nominal_ = std::min(nominal_ * 2, options_->probe_max_interval);
    return std::min(interval, options_->probe_max_interval);
  }

  /// The interval that `next` moves by its jitter.
  [[nodiscard]] Duration nominal() const { return nominal_; }

 private:
  const HealthOptions* options_;
  Duration nominal_{};
};

/// A small generator (splitmix64), so that a session's jitter follows from its seed alone.
class JitterSource {
 public:
  explicit constexpr JitterSource(std::uint64_t seed) : state_(seed) {}
  constexpr std::uint64_t next() {
    state_ += 0x9e3779b97f4a7c15ULL;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27U)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31U);
  }

 private:
  std::uint64_t state_;
};

}  // namespace kvmend::health
