// What a checker reports: the first broken rule ends a run.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "base/time.h"

namespace kvmend::sim {

/// Names the safety rules of docs/simulation.md by number.
struct Violation {
  int rule = 0;
  std::string text;
  Time at{};
};

/// Keeps the first violation. Single-threaded, one per run.
class Verdict {
 public:
  explicit Verdict(std::function<Time()> world_time) : world_time_(std::move(world_time)) {}

  void report(int rule, std::string text) {
    if (broken_) return;
    broken_ = true;
    first_ = {rule, std::move(text), world_time_()};
  }
  [[nodiscard]] bool broken() const { return broken_; }
  [[nodiscard]] const Violation& first() const { return first_; }

 private:
  std::function<Time()> world_time_;
  bool broken_ = false;
  Violation first_;
};

}  // namespace kvmend::sim
