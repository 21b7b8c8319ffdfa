// What every load has: when its next piece of work comes, and what it keeps of each process that it
// uses. Single-threaded.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "sim/cluster.h"
#include "sim/dice.h"

namespace kvmend::sim {

/// Calls `next` again and again between two moments, a quarter to twice `gap` apart. The cluster
/// ends before it goes.
class Arrivals {
 public:
  Arrivals(Cluster& cluster, Dice& dice, Duration gap, Duration until)
      : cluster_(cluster), dice_(dice), gap_(gap), until_(until) {}
  void start(Duration from, std::function<void()> next) {
    elapsed_ = from;
    next_ = std::move(next);
    cluster_.after(from, [this] { schedule(); });
  }

 private:
  void schedule() {
    const Duration gap = dice_.between(gap_ / 4, gap_ * 2);
    elapsed_ += gap;
    if (elapsed_ >= until_) return;
    cluster_.after(gap, [this] {
      next_();
      schedule();
    });
  }

  Cluster& cluster_;
  Dice& dice_;
  const Duration gap_;
  const Duration until_;
  Duration elapsed_{};
  std::function<void()> next_;
};

/// One `Life` (which has an `instance`) for each process that runs.
template <class Life>
class Lives {
 public:
  /// Null when that process has been killed.
  [[nodiscard]] Life* find(std::size_t node, std::uint64_t number) const {
    for (const auto& one : all_)
      if (one->instance->number() == number && one->instance->node().index() == node)
        return one.get();
    return nullptr;
  }
  void add(std::unique_ptr<Life> life) { all_.push_back(std::move(life)); }
  void remove(const Instance& instance) {
    std::erase_if(all_, [&](const auto& one) { return one->instance == &instance; });
  }
  void clear() { all_.clear(); }
  [[nodiscard]] auto begin() const { return all_.begin(); }
  [[nodiscard]] auto end() const { return all_.end(); }

 private:
  std::vector<std::unique_ptr<Life>> all_;
};

}  // namespace kvmend::sim
