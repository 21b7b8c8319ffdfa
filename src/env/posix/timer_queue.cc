#include "env/posix/timer_queue.h"

#include <algorithm>
#include <utility>

namespace kvmend::env::posix {
namespace {
constexpr std::size_t kShrinkFrom = 64;
}

TimerId TimerQueue::add(Time when, Task task) {
  const std::uint64_t id = tasks_.insert(std::move(task));
  heap_.push_back({when, next_sequence_++, id});
  std::ranges::push_heap(heap_, Later{});
  return {id};
}

void TimerQueue::cancel(TimerId timer) {
  if (tasks_.find(timer.value) == nullptr) return;
  // The task's destructor may add or cancel timers: it runs last, from the stack.
  const Task gone = tasks_.take(timer.value);
  shrink();
}

Time TimerQueue::next_due() {
  drop_cancelled_front();
  return heap_.empty() ? kForever : heap_.front().when;
}

Task TimerQueue::pop_due(Time now, std::uint64_t limit) {
  drop_cancelled_front();
  if (heap_.empty() || heap_.front().when > now || heap_.front().sequence >= limit) return {};
  const std::uint64_t id = heap_.front().id;
  pop_front();
  return tasks_.take(id);
}

void TimerQueue::drop_cancelled_front() {
  while (!heap_.empty() && tasks_.find(heap_.front().id) == nullptr) pop_front();
}

void TimerQueue::pop_front() {
  std::ranges::pop_heap(heap_, Later{});
  heap_.pop_back();
}

// Timeouts that are nearly always cancelled would fill the heap; rebuilding it when half is dead
// keeps it in proportion at constant cost per cancel.
void TimerQueue::shrink() {
  if (heap_.size() < kShrinkFrom || heap_.size() <= 2 * tasks_.size()) return;
  std::erase_if(heap_, [this](const Entry& e) { return tasks_.find(e.id) == nullptr; });
  std::ranges::make_heap(heap_, Later{});
}

}  // namespace kvmend::env::posix
