// When to send an unanswered message again: doubling intervals up to a cap.
#pragma once

#include <algorithm>

#include "base/config.h"
#include "base/time.h"

namespace kvmend::kv {

class Repeat {
 public:
  void start(Time now) {
    interval_ = config::kKvRepeatFirst;
    next_ = now + interval_;
  }
  void stop() { next_ = kForever; }
  [[nodiscard]] Time next() const { return next_; }
  /// Whether it is time; then the next time is set.
  [[nodiscard]] bool due(Time now) {
    if (now < next_) return false;
    interval_ = std::min<Duration>(interval_ * 2, config::kKvRepeatMax);
    next_ = now + interval_;
    return true;
  }

 private:
  Duration interval_{};
  Time next_ = kForever;
};

}  // namespace kvmend::kv
