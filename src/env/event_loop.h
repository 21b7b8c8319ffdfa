// The reactor that owns an engine: timers, posted tasks, and (through `Network`) streams. The real
// one is env/posix; tests and the simulation bring their own with virtual time.
#pragma once

#include <cstdint>
#include <functional>

#include "base/time.h"

namespace kvmend::env {

using Task = std::move_only_function<void()>;
using GapHandler = std::move_only_function<void(Duration)>;

/// Handle of a pending timer; 0 is never one.
struct TimerId {
  std::uint64_t value = 0;
  friend bool operator==(TimerId, TimerId) = default;
};

class Clock {
 public:
  virtual ~Clock() = default;
  /// Monotonic time. Any thread.
  [[nodiscard]] virtual Time now() const = 0;
};

class Random {
 public:
  virtual ~Random() = default;
  /// 64 uniformly random bits. Loop thread.
  virtual std::uint64_t next() = 0;
};

/// Something that a loop looks at while it is awake, without a descriptor. Loop thread.
class Poller {
 public:
  virtual ~Poller() = default;
  [[nodiscard]] virtual bool ready() const = 0;
  virtual void run() = 0;
  /// False: the loop looks once more at `ready` and then blocks; from now on it must be woken.
  virtual void set_awake(bool awake) = 0;
};

class EventLoop : public Clock {
 public:
  /// Runs `task` on the loop thread soon, in the order of posting. Any thread. Tasks posted after
  /// the loop has stopped are destroyed without being run.
  virtual void post(Task task) = 0;

  /// Runs `task` once, at or soon after `when`. Loop thread.
  virtual TimerId add_timer(Time when, Task task) = 0;

  /// Forgets a timer; unknown or fired ones are ignored. Loop thread.
  virtual void cancel_timer(TimerId timer) = 0;

  /// Runs `task` once at the end of this turn, after all events of it (used to batch
  /// acknowledgements). Loop thread.
  virtual void at_end_of_turn(Task task) = 0;

  /// Whether the caller is the loop thread.
  [[nodiscard]] virtual bool in_loop_thread() const = 0;

  /// Little was moved just now and the answer, or more, may follow at once: the loop may spin a
  /// while before it blocks. Bulk needs no such hint: buffers bridge a wake-up. Loop thread.
  virtual void expect_more() {}

  /// One for each loop; null ends it. Loops that don't block needn't care. Loop thread.
  virtual void set_poller(Poller* poller) { static_cast<void>(poller); }

  /// Where the loop's own thread sleeps at this moment, makes the caller the loop thread instead:
  /// runs `first`, then turns until `done` holds or `until` has come. It saves whoever would wait
  /// for the loop two wake-ups. False: the loop is busy, and nothing was done. Any thread but the
  /// loop's.
  virtual bool drive(Task& first, const std::function<bool()>& done, Time until) {
    static_cast<void>(first);
    static_cast<void>(done);
    static_cast<void>(until);
    return false;
  }

  /// Calls `handler` when this loop notices that it wasn't served for longer than it planned to
  /// sleep (the process was stopped, the machine paused, or one handler ran very long), with the
  /// length of that gap. The call comes before any timer of that turn, so that peers aren't blamed
  /// for a silence that was our own. An empty handler ends it. Loop thread.
  virtual void set_gap_handler(GapHandler handler) { static_cast<void>(handler); }
};

/// A timer that cancels itself when its owner goes. Loop thread.
class ScopedTimer {
 public:
  explicit ScopedTimer(EventLoop& loop) : loop_(&loop) {}
  ScopedTimer(const ScopedTimer&) = delete;
  ScopedTimer& operator=(const ScopedTimer&) = delete;
  ~ScopedTimer() { cancel(); }

  /// (Re)arms the timer; an earlier arming is forgotten.
  void arm(Time when, Task task) {
    cancel();
    when_ = when;
    id_ = loop_->add_timer(when, [this, task = std::move(task)]() mutable {
      id_ = {};
      // The task may destroy or re-arm this timer: run it from the stack.
      Task run = std::move(task);
      run();
    });
  }
  void cancel() {
    if (id_.value != 0) loop_->cancel_timer(id_);
    id_ = {};
  }
  [[nodiscard]] bool armed() const { return id_.value != 0; }
  [[nodiscard]] Time when() const { return when_; }

 private:
  EventLoop* loop_;
  TimerId id_;
  Time when_{};
};

}  // namespace kvmend::env
