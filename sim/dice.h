// A driver's own randomness: apart from the world's, so that one more packet doesn't change the
// script.
#pragma once

#include <chrono>
#include <cstdint>

#include "base/time.h"
#include "env/sim/core.h"

namespace kvmend::sim {

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : random_(seed) {}

  std::uint64_t next() { return random_.next(); }
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(random_.below(n)); }
  bool chance(double probability) { return random_.chance(probability); }
  /// low ... high
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low +
           static_cast<std::int64_t>(random_.below(static_cast<std::uint64_t>(high - low) + 1));
  }
  Duration between(Duration low, Duration high) {
    return Duration(between(low.count(), high.count()));
  }
  /// Mostly near `low`: short and long things both happen.
  Duration skewed(Duration low, Duration high) {
    return between(low, low + (high - low) / (1 + static_cast<std::int64_t>(below(8))));
  }
  template <class Container>
  auto& pick(Container& from) {
    return from[below(from.size())];
  }

 private:
  env::sim::SimRandom random_;
};

}  // namespace kvmend::sim
