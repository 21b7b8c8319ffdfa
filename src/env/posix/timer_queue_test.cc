#include "env/posix/timer_queue.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace kvmend::env::posix {
namespace {

Time at(int ns) {
  return Time(Duration(ns));
}

TEST(TimerQueue, FiresInOrderOfDueTimeThenOfAdding) {
  TimerQueue queue;
  std::vector<int> fired;
  queue.add(at(20), [&] { fired.push_back(3); });
  queue.add(at(10), [&] { fired.push_back(1); });
  queue.add(at(10), [&] { fired.push_back(2); });
  queue.add(at(30), [&] { fired.push_back(4); });
  EXPECT_EQ(queue.next_due(), at(10));
  while (Task task = queue.pop_due(at(25), queue.mark())) task();
  EXPECT_EQ(fired, (std::vector{1, 2, 3}));
  EXPECT_EQ(queue.next_due(), at(30));
  EXPECT_EQ(queue.size(), 1U);
}

TEST(TimerQueue, LeavesTimersThatWereAddedAfterTheMark) {
  TimerQueue queue;
  const std::uint64_t mark = queue.mark();
  queue.add(at(1), [] {});
  EXPECT_FALSE(queue.pop_due(at(5), mark));
  EXPECT_TRUE(queue.pop_due(at(5), queue.mark()));
}

TEST(TimerQueue, CancelDestroysTheTaskAtOnceAndForgetsOldIds) {
  TimerQueue queue;
  auto held = std::make_shared<int>(1);
  const TimerId first = queue.add(at(1), [held] {});
  EXPECT_EQ(held.use_count(), 2);
  queue.cancel(first);
  EXPECT_EQ(held.use_count(), 1);
  const TimerId second = queue.add(at(1), [] {});  // takes the slot of the first
  EXPECT_NE(first, second);
  queue.cancel(first);
  EXPECT_EQ(queue.size(), 1U);
  queue.cancel(TimerId{});
  EXPECT_EQ(queue.next_due(), at(1));
}

TEST(TimerQueue, CancelledTimersDontFillTheHeap) {
  TimerQueue queue;
  queue.add(at(1), [] {});
  for (int i = 0; i < 100'000; ++i) {
    queue.cancel(queue.add(at(1'000'000 + i), [] {}));
    ASSERT_LE(queue.heap_size(), 2 * queue.size() + 64);
  }
  EXPECT_TRUE(queue.pop_due(at(1), queue.mark()));
  EXPECT_EQ(queue.next_due(), kForever);
}

TEST(TimerQueue, ATaskMayCancelOthersWhenItIsDestroyed) {
  TimerQueue queue;
  const TimerId other = queue.add(at(2), [] {});
  struct Canceller {
    TimerQueue* queue;
    TimerId id;
    ~Canceller() { queue->cancel(id); }
  };
  auto canceller = std::make_unique<Canceller>(&queue, other);
  const TimerId timer = queue.add(at(1), [c = std::move(canceller)] {});
  queue.cancel(timer);
  EXPECT_EQ(queue.size(), 0U);
}

}  // namespace
}  // namespace kvmend::env::posix
