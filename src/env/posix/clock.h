// The machine's clock and its entropy.
#pragma once

#include <array>
#include <cstdint>

#include "env/event_loop.h"

namespace kvmend::env::posix {

/// CLOCK_MONOTONIC now. Any thread.
[[nodiscard]] Time monotonic_now();

/// CLOCK_BOOTTIME since boot: unlike the monotonic clock it goes on while the machine is
/// suspended, so gaps are measured with it. Any thread.
[[nodiscard]] Duration boot_time();

class PosixClock final : public Clock {
 public:
  [[nodiscard]] Time now() const override { return monotonic_now(); }
};

/// xoshiro256**, seeded by getrandom(2): incarnations and nonces must differ between processes, but
/// they aren't secrets. One thread at a time.
/// Source: D. Blackman, S. Vigna, "Scrambled linear pseudorandom number generators", 2021.
class PosixRandom final : public Random {
 public:
  PosixRandom();
  std::uint64_t next() override;

 private:
  std::array<std::uint64_t, 4> state_;
};

}  // namespace kvmend::env::posix
