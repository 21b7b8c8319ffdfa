// Pending timers in the order of their due times. Pure: the loop says what time it is.
#pragma once

#include <cstdint>
#include <vector>

#include "env/event_loop.h"
#include "env/posix/slot_map.h"

namespace kvmend::env::posix {

/// Thread-compatible. Timers with the same due time fire in the order in which they were added.
class TimerQueue {
 public:
  TimerId add(Time when, Task task);
  /// Destroys the task at once; unknown and fired ids are ignored.
  void cancel(TimerId timer);

  /// When the earliest pending timer is due; `kForever` without one.
  [[nodiscard]] Time next_due();

  /// Takes the earliest timer that is due at `now` and was added before `mark()` returned `limit`
  /// (so that a timer which re-arms itself for "now" can't hold the loop). Empty when there is
  /// none.
  Task pop_due(Time now, std::uint64_t limit);
  [[nodiscard]] std::uint64_t mark() const { return next_sequence_; }

  [[nodiscard]] std::size_t size() const { return tasks_.size(); }
  /// Heap entries including cancelled ones: at most 2 × size() + 64.
  [[nodiscard]] std::size_t heap_size() const { return heap_.size(); }

 private:
  struct Entry {
    Time when;
    std::uint64_t sequence;
    std::uint64_t id;
  };
  struct Later {
    bool operator()(const Entry& a, const Entry& b) const {
      return a.when != b.when ? a.when > b.when : a.sequence > b.sequence;
    }
  };
  void drop_cancelled_front();
  void pop_front();
  void shrink();

  SlotMap<Task> tasks_;
  std::vector<Entry> heap_;
  std::uint64_t next_sequence_ = 0;
};

}  // namespace kvmend::env::posix
