// The real reactor: epoll, timers, tasks posted from other threads.
//
// One turn: wait -> gap handler -> I/O events -> posted tasks -> due timers -> end-of-turn tasks.
// Arrived bytes are handled before timers, so that a deadline never fires over data that is here.
#pragma once

#include <sys/epoll.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "base/thread_annotations.h"
#include "env/event_loop.h"
#include "env/posix/fork_guard.h"
#include "env/posix/slot_map.h"
#include "env/posix/timer_queue.h"
#include "kvmend/status.h"

namespace kvmend::env::posix {

/// Receives the readiness of one descriptor. Loop thread.
class IoWatcher {
 public:
  virtual ~IoWatcher() = default;
  /// `events` as epoll reports them. May destroy this or any other watcher.
  virtual void on_io(std::uint32_t events) = 0;
};

/// Handle of a watched descriptor; 0 is never one. It isn't used twice.
struct IoId {
  std::uint64_t value = 0;
  friend bool operator==(IoId, IoId) = default;
};

struct EventLoopOptions {
  /// How long to poll before blocking, while I/O or posted tasks keep coming. It saves a wake-up's
  /// latency at the price of a core; an idle loop always blocks.
  Duration spin{};
  /// Gaps longer than this are reported to the gap handler.
  Duration gap_threshold = std::chrono::milliseconds(500);
};

/// The loop belongs to the thread that runs it; between `run_once` calls, to the one that ran it
/// last, and before the first, to the one that created it. It must not be used in a forked child.
class PosixEventLoop final : public EventLoop {
 public:
  /// Errors: `kResourceExhausted` (descriptors).
  static Result<std::unique_ptr<PosixEventLoop>> create(const EventLoopOptions& options = {});
  ~PosixEventLoop() override;

  /// Runs turns until `stop()`; the last one also runs all tasks posted so far. Any thread, one at
  /// a time.
  void run();

  /// Runs one turn, waiting for at most `timeout` (negative: without limit). False once stopped.
  /// For callers that drive the loop themselves. Any thread, one at a time, never from a handler.
  bool run_once(Duration timeout);

  /// Ends `run()` after the current turn, for good; tasks posted after its end are dropped. Any
  /// thread.
  void stop();

  /// Makes the caller the loop thread while nobody runs the loop, e.g. to take things down after
  /// the thread that ran it has been joined.
  void bind_to_this_thread();

  [[nodiscard]] Time now() const override;
  void post(Task task) override;
  TimerId add_timer(Time when, Task task) override;
  void cancel_timer(TimerId timer) override;
  void at_end_of_turn(Task task) override;
  [[nodiscard]] bool in_loop_thread() const override;
  void set_gap_handler(GapHandler handler) override;

  // For PosixNetwork. Loop thread.

  /// Reports `events` (EPOLLIN...; level-triggered; EPOLLERR and EPOLLHUP always) of `fd`.
  /// Errors: `kResourceExhausted`.
  Result<IoId> watch(int fd, std::uint32_t events, IoWatcher* watcher);
  void rewatch(IoId id, std::uint32_t events);
  /// Ends it, before the descriptor is closed: also events already fetched don't arrive any more.
  void unwatch(IoId id);
  [[nodiscard]] bool is_watched(IoId id) { return watched_.find(id.value) != nullptr; }

  /// Number of times a poster had to write the eventfd (tests, metrics). Any thread.
  [[nodiscard]] std::uint64_t wakeups() const { return wakeups_.load(std::memory_order_relaxed); }

 private:
  static constexpr std::size_t kMaxEventsPerTurn = 256;

  struct Watched {
    int fd = -1;
    IoWatcher* watcher = nullptr;
  };

  PosixEventLoop(const EventLoopOptions& options, GuardedFd epoll, GuardedFd wake);
  Duration plan_wait(Duration timeout);
  int wait(Duration planned);
  int spin(Duration planned);
  int poll_epoll(Duration timeout);
  void note_progress(Duration planned);
  void dispatch_io(int count);
  void run_posted();
  void run_timers();
  void run_end_of_turn();
  void finish();
  void drain_wake();

  const EventLoopOptions options_;
  GuardedFd epoll_;
  GuardedFd wake_;
  std::atomic<std::thread::id> owner_;

  // Shared with posters.
  Mutex mutex_;
  std::deque<Task> posted_ KVM_GUARDED_BY(mutex_);
  bool asleep_ KVM_GUARDED_BY(mutex_) = false;  // it is, or may be about to be: wake it
  bool closed_ KVM_GUARDED_BY(mutex_) = false;
  std::atomic<bool> has_posted_{false};  // hint for spinning
  std::atomic<bool> stop_{false};
  std::atomic<std::uint64_t> wakeups_{0};

  // Loop thread.
  std::array<epoll_event, kMaxEventsPerTurn> events_{};
  bool in_turn_ = false;
  bool precise_wait_ = true;  // epoll_pwait2 works here
  TimerQueue timers_;
  SlotMap<Watched> watched_;
  std::deque<Task> ready_;  // taken from posted_, not run yet
  std::vector<Task> end_of_turn_;
  GapHandler gap_handler_;
  Duration last_seen_{};  // boot time at the last point where the loop was known to run; 0: never
  Time last_activity_{};
};

}  // namespace kvmend::env::posix
