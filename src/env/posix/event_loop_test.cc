#include "env/posix/event_loop.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/wait.h>

#include <atomic>
#include <csignal>
#include <functional>
#include <memory>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "base/contain.h"
#include "base/unique_fd.h"
#include "env/posix/clock.h"

namespace kvmend::env::posix {
namespace {

using namespace std::chrono_literals;

std::unique_ptr<PosixEventLoop> make_loop(const EventLoopOptions& options = {}) {
  auto loop = PosixEventLoop::create(options);
  if (!loop) throw std::runtime_error(loop.error().to_string());
  return std::move(*loop);
}

// Runs turns until the condition holds; false after a generous deadline.
template <class Condition>
bool run_until(PosixEventLoop& loop, Condition condition) {
  const Time deadline = loop.now() + 30s;
  while (!condition()) {
    if (loop.now() > deadline) return false;
    loop.run_once(10ms);
  }
  return true;
}

TEST(PosixEventLoop, TimersFireInOrderAndNotEarly) {
  auto loop = make_loop();
  std::vector<int> fired;
  const Time start = loop->now();
  Time fired_at{};
  loop->add_timer(start + 3ms, [&] { fired.push_back(3); });
  loop->add_timer(start + 300us, [&] {
    fired.push_back(1);
    fired_at = loop->now();
  });
  const TimerId cancelled = loop->add_timer(start + 1ms, [&] { fired.push_back(99); });
  loop->add_timer(start + 1ms, [&] { fired.push_back(2); });
  loop->cancel_timer(cancelled);
  ASSERT_TRUE(run_until(*loop, [&] { return fired.size() == 3; }));
  EXPECT_EQ(fired, (std::vector{1, 2, 3}));
  EXPECT_GE(fired_at, start + 300us);
}

TEST(PosixEventLoop, ATimerThatRearmsItselfForNowDoesntHoldTheTurn) {
  auto loop = make_loop();
  int fired = 0;
  std::function<void()> again = [&] {
    ++fired;
    loop->add_timer(loop->now(), again);
  };
  again();
  loop->run_once(0ns);
  EXPECT_EQ(fired, 2);
  loop->run_once(-1ns);
  EXPECT_EQ(fired, 3);
}

TEST(PosixEventLoop, EndOfTurnComesAfterTimersAndNextOneDoesntWait) {
  auto loop = make_loop();
  std::vector<int> order;
  loop->post([&] {
    loop->at_end_of_turn([&] {
      order.push_back(3);
      loop->at_end_of_turn([&] { order.push_back(4); });
    });
    order.push_back(1);
  });
  loop->add_timer(loop->now(), [&] { order.push_back(2); });
  loop->run_once(-1ns);
  EXPECT_EQ(order, (std::vector{1, 2, 3}));
  loop->run_once(-1ns);  // would hang if it waited
  EXPECT_EQ(order, (std::vector{1, 2, 3, 4}));
}

TEST(PosixEventLoop, PostsFromManyThreadsArriveInTheOrderOfEachThread) {
  auto loop = make_loop();
  constexpr int kThreads = 4;
  constexpr int kPosts = 5'000;
  std::vector<int> last(kThreads, -1);
  bool ordered = true;
  int total = 0;
  std::jthread runner([&] { loop->run(); });
  {
    std::vector<std::jthread> posters;
    posters.reserve(kThreads);
    for (int t = 0; t < kThreads; ++t) {
      posters.emplace_back([&, t] {
        for (int i = 0; i < kPosts; ++i) {
          loop->post([&, t, i] {
            ordered = ordered && last[static_cast<std::size_t>(t)] == i - 1;
            last[static_cast<std::size_t>(t)] = i;
            if (++total == kThreads * kPosts) loop->stop();
          });
        }
      });
    }
  }
  runner.join();
  EXPECT_EQ(total, kThreads * kPosts);
  EXPECT_TRUE(ordered);
}

TEST(PosixEventLoop, WakesOnlyALoopThatMaySleep) {
  auto loop = make_loop();
  int ran = 0;
  for (int i = 0; i < 100; ++i) loop->post([&] { ++ran; });
  EXPECT_EQ(loop->wakeups(), 0U);  // it isn't asleep
  ASSERT_TRUE(run_until(*loop, [&] { return ran == 100; }));
  EXPECT_EQ(loop->wakeups(), 0U);
}

TEST(PosixEventLoop, TasksPostedBeforeTheStopRunLaterOnesAreDestroyed) {
  auto loop = make_loop();
  auto held = std::make_shared<int>(0);
  bool before = false;
  loop->post([&] {
    loop->stop();
    loop->post([&] { before = true; });
  });
  loop->run();
  EXPECT_TRUE(before);
  loop->post([held] { ADD_FAILURE() << "ran after the stop"; });
  EXPECT_EQ(held.use_count(), 1);
  EXPECT_FALSE(loop->run_once(0ns));
}

TEST(PosixEventLoop, StopsAlsoWhenItsCallerDrivesIt) {
  auto loop = make_loop();
  int ran = 0;
  loop->post([&] { ++ran; });
  loop->stop();
  EXPECT_FALSE(loop->run_once(-1ns));
  loop->post([&] { ++ran; });
  EXPECT_FALSE(loop->run_once(-1ns));
  EXPECT_EQ(ran, 1);
}

TEST(PosixEventLoop, BelongsToTheThreadThatRanItLast) {
  auto loop = make_loop();
  EXPECT_TRUE(loop->in_loop_thread());
  bool inside = false;
  std::jthread([&] {
    EXPECT_FALSE(loop->in_loop_thread());
    loop->post([&] { inside = loop->in_loop_thread(); });
    loop->run_once(0ns);
    EXPECT_TRUE(loop->in_loop_thread());
  }).join();
  EXPECT_TRUE(inside);
  EXPECT_FALSE(loop->in_loop_thread());
  loop->bind_to_this_thread();
  EXPECT_TRUE(loop->in_loop_thread());
}

TEST(PosixEventLoop, SpinsOnlyWhileMoreIsExpected) {
  auto loop = make_loop({.spin = 200us});
  int ran = 0;
  std::jthread poster([&] {
    for (int i = 0; i < 200; ++i)
      loop->post([&] {
        ++ran;
        loop->expect_more();
      });
  });
  ASSERT_TRUE(run_until(*loop, [&] { return ran == 200; }));
  // Idle for long: the turn blocks for its whole timeout and costs no more than one spin of CPU.
  ASSERT_TRUE(run_until(*loop, [&, from = loop->now()] { return loop->now() > from + 10ms; }));
  timespec before{};
  timespec after{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &before);
  loop->run_once(100ms);
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &after);
  const auto used = std::chrono::seconds(after.tv_sec - before.tv_sec) +
                    std::chrono::nanoseconds(after.tv_nsec - before.tv_nsec);
  EXPECT_LT(used, 50ms);
}

TEST(PosixEventLoop, DestroysPendingTasksWhichMayUseTheLoopThen) {
  auto held = std::make_shared<int>(0);
  {
    auto loop = make_loop();
    auto timer = std::make_unique<ScopedTimer>(*loop);
    timer->arm(loop->now() + 1h, [held] {});
    loop->add_timer(loop->now() + 1h, [t = std::move(timer)] {});
    loop->post([held] {});
    loop->at_end_of_turn([held] {});
  }
  EXPECT_EQ(held.use_count(), 1);
}

TEST(PosixEventLoop, ReportsALongTurnAsAGapBeforeTimers) {
  auto loop = make_loop({.gap_threshold = 5ms});
  std::vector<std::string> order;
  Duration gap{};
  loop->set_gap_handler([&](Duration d) {
    order.emplace_back("gap");
    gap = d;
  });
  loop->post([&] {
    loop->add_timer(loop->now(), [&] { order.emplace_back("timer"); });
    const Time until = loop->now() + 20ms;
    while (loop->now() < until) {
    }
    // The timer was added in this turn and is due in it; only a later turn's timers come after.
    loop->add_timer(loop->now() + 1ns, [&] { order.emplace_back("late timer"); });
    loop->at_end_of_turn([&] {
      const Time more = loop->now() + 20ms;
      while (loop->now() < more) {
      }
      loop->add_timer(loop->now(), [&] { order.emplace_back("next turn"); });
    });
  });
  ASSERT_TRUE(run_until(*loop, [&] { return order.size() >= 4; }));
  EXPECT_EQ(order, (std::vector<std::string>{"timer", "late timer", "gap", "next turn"}));
  EXPECT_GE(gap, 20ms);
}

// Case R12: a process that was stopped notices it by itself.
TEST(PosixEventLoop, R12_NoticesThatItsProcessWasStopped) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const UniqueFd from_child(ends[0]);
  UniqueFd to_parent(ends[1]);
  const pid_t child = ::fork();
  if (child == 0) {
    auto loop = make_loop({.gap_threshold = 50ms});
    loop->set_gap_handler([&](Duration) {
      static_cast<void>(::write(to_parent.get(), "g", 1) == 1);
      loop->stop();
    });
    loop->post([&] { static_cast<void>(::write(to_parent.get(), "r", 1) == 1); });
    loop->run();
    ::_exit(0);
  }
  to_parent.reset();
  char byte = 0;
  do {  // a gap of the busy machine before the stop would be honest, too
    ASSERT_EQ(::read(from_child.get(), &byte, 1), 1);
  } while (byte != 'r');
  ASSERT_EQ(::kill(child, SIGSTOP), 0);
  int state = 0;
  ASSERT_EQ(::waitpid(child, &state, WUNTRACED), child);
  pollfd quiet{.fd = from_child.get(), .events = POLLIN, .revents = 0};
  ::poll(&quiet, 1, 500);  // the length of the stop
  ASSERT_EQ(::kill(child, SIGCONT), 0);
  ASSERT_EQ(::read(from_child.get(), &byte, 1), 1);
  EXPECT_EQ(byte, 'g');
  ASSERT_EQ(::waitpid(child, &state, 0), child);
}

TEST(PosixRandom, TwoGeneratorsDiffer) {
  PosixRandom a;
  PosixRandom b;
  EXPECT_NE(a.next(), b.next());
  EXPECT_NE(a.next(), a.next());
}

/// A loop with a thread of its own.
class RunningLoop {
 public:
  explicit RunningLoop(const EventLoopOptions& options = {})
      : loop(make_loop(options)), thread_([this] { loop->run(); }) {}
  ~RunningLoop() {
    loop->stop();
    thread_.join();
  }
  /// Drives it as soon as its thread sleeps.
  void drive(const std::function<void()>& first, const std::function<bool()>& done,
             Time until = kForever) {
    while (true) {
      Task task = [&] { first(); };
      if (loop->drive(task, done, until)) return;
      std::this_thread::yield();
    }
  }
  std::unique_ptr<PosixEventLoop> loop;

 private:
  std::thread thread_;
};

TEST(PosixEventLoop, WhoeverWaitsMayDriveASleepingLoop) {
  RunningLoop running;
  PosixEventLoop& loop = *running.loop;
  const auto me = std::this_thread::get_id();
  std::vector<std::thread::id> ran_on;
  bool timer_fired = false;
  bool posted_ran = false;
  std::thread other;
  running.drive(
      [&] {
        EXPECT_TRUE(loop.in_loop_thread());
        ran_on.push_back(std::this_thread::get_id());
        loop.at_end_of_turn([&] { ran_on.push_back(std::this_thread::get_id()); });
        loop.add_timer(loop.now() + 2ms, [&] { timer_fired = true; });
        other = std::thread([&] { loop.post([&] { posted_ran = true; }); });
      },
      [&] { return timer_fired && posted_ran; });
  other.join();
  EXPECT_EQ(ran_on, (std::vector{me, me}));
  EXPECT_FALSE(loop.in_loop_thread());
  // Its own thread goes on with what comes later.
  std::atomic<bool> later{false};
  loop.post([&] {
    EXPECT_NE(std::this_thread::get_id(), me);
    later.store(true);
  });
  const Time deadline = loop.now() + 30s;
  while (!later.load() && loop.now() < deadline) std::this_thread::yield();
  EXPECT_TRUE(later.load());
}

TEST(PosixEventLoop, ATimerLeftBehindByADriverFires) {
  RunningLoop running;
  std::atomic<bool> fired{false};
  PosixEventLoop& loop = *running.loop;
  running.drive([&] { loop.add_timer(loop.now() + 1ms, [&] { fired.store(true); }); },
                [] { return true; });
  const Time deadline = loop.now() + 30s;
  while (!fired.load() && loop.now() < deadline) std::this_thread::yield();
  EXPECT_TRUE(fired.load());
}

TEST(PosixEventLoop, DrivingEndsAtItsTimeAndNeverInsideTheLoop) {
  RunningLoop running;
  PosixEventLoop& loop = *running.loop;
  const Time until = loop.now() + 3ms;
  bool nested = true;
  running.drive(
      [&] {
        Task task = [] {};
        nested = loop.drive(task, [] { return true; }, kForever);
      },
      [] { return false; }, until);
  EXPECT_GE(loop.now(), until);
  EXPECT_FALSE(nested);
}

// Memory runs out in the middle of anything; the loop's thread, and with it the process, goes on.
TEST(PosixEventLoop, WhatATaskThrowsEndsThatTaskOnly) {
  auto loop = make_loop();
  const std::uint64_t before = contained_exceptions();
  std::vector<int> ran;
  loop->post([] { throw std::bad_alloc(); });
  loop->post([&] { ran.push_back(1); });
  loop->add_timer(loop->now(), [] { throw std::bad_alloc(); });
  loop->add_timer(loop->now(), [&] { ran.push_back(2); });
  loop->at_end_of_turn([] { throw 5; });
  loop->at_end_of_turn([&] { ran.push_back(3); });
  ASSERT_TRUE(run_until(*loop, [&] { return ran.size() == 3; }));
  EXPECT_EQ(contained_exceptions(), before + 3);
  loop->stop();
  loop->post([] { throw std::bad_alloc(); });  // and those of its last turn
  loop->post([&] { ran.push_back(4); });
  while (loop->run_once(1ms)) {
  }
  EXPECT_EQ(ran, (std::vector{1, 2, 3, 4}));
}

TEST(PosixEventLoop, ADriversTaskMayThrow) {
  RunningLoop running;
  bool went_on = false;
  running.drive(
      [&] {
        running.loop->post([&] { went_on = true; });
        throw std::bad_alloc();
      },
      [&] { return went_on; });
  EXPECT_TRUE(went_on);
}

/// A pipe whose reading end a loop watches. Bytes are counted by whoever runs the loop.
class CountedPipe : public IoWatcher {
 public:
  explicit CountedPipe(RunningLoop& running) : running_(running) {
    int ends[2];
    if (::pipe2(ends, O_NONBLOCK | O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
    from_.reset(ends[0]);
    to_.reset(ends[1]);
    running.drive([this] { io_ = *running_.loop->watch(from_.get(), EPOLLIN, this); },
                  [] { return true; });
  }
  ~CountedPipe() override {
    running_.drive([this] { running_.loop->unwatch(io_); }, [] { return true; });
  }
  void on_io(std::uint32_t) override {
    char byte = 0;
    while (::read(from_.get(), &byte, 1) == 1) seen.fetch_add(1);
  }
  void write() { ASSERT_EQ(::write(to_.get(), "x", 1), 1); }
  std::atomic<int> seen{0};

 private:
  RunningLoop& running_;
  UniqueFd from_;
  UniqueFd to_;
  IoId io_;
};

TEST(PosixEventLoop, WhatADriverServesDoesntWakeTheLoopsOwnThread) {
  RunningLoop running;
  CountedPipe pipe(running);
  constexpr int kBytes = 200;
  std::uint64_t before = 0;
  std::uint64_t after = 0;
  running.drive(
      [&] {
        before = running.loop->awakenings();
        pipe.write();
      },
      [&] {
        const int seen = pipe.seen.load();
        after = running.loop->awakenings();
        if (seen < kBytes && after - before < 5) pipe.write();
        return seen >= kBytes || after - before >= 5;
      });
  EXPECT_EQ(after, before);
  EXPECT_EQ(pipe.seen.load(), kBytes);
}

// Its own thread sleeps until the timer anyway: a driver that leaves needn't wake it for that.
TEST(PosixEventLoop, ADriverLeavesTheLoopsOwnThreadAsleepThatKnowsOfTheTimer) {
  RunningLoop running;
  PosixEventLoop& loop = *running.loop;
  running.drive([&] { loop.add_timer(loop.now() + 1h, [] {}); }, [] { return true; });
  while (loop.awakenings() < 1) std::this_thread::yield();  // for a timer that was new to it
  running.drive([] {}, [] { return true; });                // it sleeps again
  const std::uint64_t wakeups = loop.wakeups();
  for (int i = 0; i < 100; ++i) running.drive([] {}, [] { return true; });
  EXPECT_EQ(loop.wakeups(), wakeups);
}

// A spin that yields would give each of a compute-bound neighbour's time slices away.
TEST(PosixEventLoop, DoesntSpinOnACoreThatOthersUse) {
  cpu_set_t before;
  ASSERT_EQ(::sched_getaffinity(0, sizeof before, &before), 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int cpu = 0; CPU_COUNT(&one) == 0; ++cpu)
    if (CPU_ISSET(cpu, &before)) CPU_SET(cpu, &one);
  ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
  auto loop = make_loop({.spin = 50us});
  EXPECT_FALSE(loop->crowded(loop->now()));
  std::atomic<bool> over{false};
  std::jthread neighbour([&] {
    while (!over.load(std::memory_order_relaxed)) {
    }
  });
  EXPECT_TRUE(run_until(*loop, [&] {
    loop->expect_more();
    return loop->crowded(loop->now());
  }));
  over.store(true);
  neighbour.join();
  ASSERT_EQ(::sched_setaffinity(0, sizeof before, &before), 0);
}

// Else whoever came while it spins would never get it: every answer makes it spin again.
TEST(PosixEventLoop, ALoopThatOnlySpinsIsLent) {
  RunningLoop running({.spin = 20s});
  PosixEventLoop& loop = *running.loop;
  std::atomic<bool> spins{false};
  loop.post([&] {
    loop.expect_more();
    loop.at_end_of_turn([&] { spins.store(true); });
  });
  while (!spins.load()) std::this_thread::yield();
  const Time start = loop.now();
  running.drive([] {}, [] { return true; });
  EXPECT_LT(loop.now() - start, 15s);
}

// Events, tasks and timers that come just when a driver leaves: its own thread must take them,
// since nobody else will.
TEST(PosixEventLoop, NothingIsMissedWhenADriverLeaves) {
  for (const Duration spin : {Duration::zero(), Duration(20us)}) {
    RunningLoop running({.spin = spin});
    PosixEventLoop& loop = *running.loop;
    CountedPipe pipe(running);
    constexpr int kRounds = 3'000;
    std::atomic<int> round{0};
    std::jthread driver([&] {
      for (int i = 1; i <= kRounds; ++i) {
        while (round.load() < i) std::this_thread::yield();
        int looks = i % 7;  // it leaves after so many turns, or earlier
        Task task = [] {};
        loop.drive(task, [&] { return looks-- <= 0; }, loop.now() + Duration(i % 5 * 3us));
      }
    });
    for (int i = 1; i <= kRounds; ++i) {
      std::atomic<int> ran{0};
      round.store(i);
      for (int spins = i % 64; spins > 0; --spins) static_cast<void>(round.load());
      if (i % 3 == 0) {
        loop.post([&] { ran.fetch_add(1); });
      } else if (i % 3 == 1) {
        loop.post([&] { loop.add_timer(loop.now() + 20us, [&] { ran.fetch_add(1); }); });
      } else {
        pipe.write();
      }
      const int seen = (i + 1) / 3;  // bytes so far
      const Time deadline = loop.now() + 30s;
      while (i % 3 == 2 ? pipe.seen.load() < seen : ran.load() == 0) {
        if (loop.now() > deadline) {
          round.store(kRounds);  // lets the driver go
          FAIL() << "round " << i;
        }
        std::this_thread::yield();
      }
    }
  }
}

TEST(PosixEventLoop, ManyDriversAndPostersLoseNothing) {
  for (const Duration spin : {Duration::zero(), Duration(20us)}) {
    RunningLoop running({.spin = spin});
    PosixEventLoop& loop = *running.loop;
    constexpr int kThreads = 4;
    constexpr int kRounds = 2'000;
    int count = 0;  // of the loop thread, whoever that is
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t)
      threads.emplace_back([&] {
        for (int i = 0; i < kRounds; ++i) {
          std::atomic<bool> done{false};
          Task task = [&] {
            loop.post([&] {
              ++count;
              done.store(true);
            });
          };
          if (!loop.drive(task, [&] { return done.load(); }, kForever)) loop.post(std::move(task));
          while (!done.load()) std::this_thread::yield();
        }
      });
    threads.clear();
    EXPECT_EQ(count, kThreads * kRounds);
  }
}

}  // namespace
}  // namespace kvmend::env::posix
