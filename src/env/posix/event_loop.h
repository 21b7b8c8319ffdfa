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
#include <mutex>
#include <optional>
#include <span>
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
  /// `on_io` threw: what it was about ends here, without needing memory. Still watched.
  virtual void on_io_failed() {}
};

/// Handle of a watched descriptor; 0 is never one. It isn't used twice.
struct IoId {
  std::uint64_t value = 0;
  friend bool operator==(IoId, IoId) = default;
};

struct EventLoopOptions {
  /// How long to poll before blocking, while `expect_more` keeps coming. It saves a wake-up's
  /// latency at the price of a core; an idle loop always blocks.
  Duration spin{};
  /// Gaps longer than this are reported to the gap handler.
  Duration gap_threshold = std::chrono::milliseconds(500);
};

/// What a handler, task or timer throws (no memory) is contained: an I/O handler's connection ends,
/// anything else is counted and logged, and the loop goes on.
///
/// The loop belongs to the thread that runs it; between `run_once` calls, to the one that ran it
/// last, and before the first, to the one that created it. While the thread in `run` blocks it
/// belongs to nobody, and another thread may `drive` it. It must not be used in a forked child.
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
  /// Only while `run` runs: its thread lends the loop while it blocks.
  bool drive(Task& first, const std::function<bool()>& done, Time until) override;
  void expect_more() override;
  void set_poller(Poller* poller) override;
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
  /// Number of times the thread in `run` woke up (tests). Any thread.
  [[nodiscard]] std::uint64_t awakenings() const {
    return awakenings_.load(std::memory_order_relaxed);
  }
  /// Whether others use this thread's core so much that spinning is put off (tests). Any thread.
  [[nodiscard]] bool crowded(Time at) const {
    return at < crowded_until_.load(std::memory_order_relaxed);
  }

 private:
  static constexpr std::size_t kMaxEventsPerTurn = 256;

  struct Watched {
    int fd = -1;
    IoWatcher* watcher = nullptr;
  };

  PosixEventLoop(const EventLoopOptions& options, GuardedFd epoll, GuardedFd wake,
                 GuardedFd doorbell);
  using Events = std::array<epoll_event, kMaxEventsPerTurn>;

  bool turn_or_finish(Duration timeout);
  void turn(Duration timeout);
  Duration plan_wait(Duration timeout);
  int wait(Duration planned);
  int wait_lending(Duration planned);
  [[nodiscard]] bool may_spin() const;
  [[nodiscard]] bool driven_lately(Time at) const;
  bool take_lent(std::unique_lock<std::mutex>& turns);
  int spin(Duration planned);
  int poll_epoll(const GuardedFd& epoll, Duration timeout, std::span<epoll_event> events);
  void ring_doorbell(bool on);
  void let_others_run();
  void give_back();
  void wake() KVM_REQUIRES(mutex_);
  void note_progress(Duration planned);
  void dispatch_io(int count);
  static void run_task(Task task);
  void run_posted();
  void run_timers();
  void run_end_of_turn();
  void finish();
  void drain_wake();

  const EventLoopOptions options_;
  GuardedFd epoll_;
  GuardedFd wake_;
  // A set that holds nothing but `epoll_`. The thread in `run` sleeps on it while it lends the
  // loop: whoever drives switches it off, so that what it serves itself wakes nobody else.
  GuardedFd doorbell_;
  std::atomic<std::thread::id> owner_;

  // Shared with posters.
  Mutex mutex_;
  std::deque<Task> posted_ KVM_GUARDED_BY(mutex_);
  bool asleep_ KVM_GUARDED_BY(mutex_) = false;  // it is, or may be about to be: wake it
  bool closed_ KVM_GUARDED_BY(mutex_) = false;
  std::atomic<bool> has_posted_{false};  // hint for spinning
  std::atomic<bool> stop_{false};
  std::atomic<std::uint64_t> wakeups_{0};
  std::atomic<std::uint64_t> awakenings_{0};

  std::atomic<bool> precise_wait_{true};  // epoll_pwait2 works here
  std::atomic<Time> last_driven_{Time{}};
  std::atomic<bool> spins_{false};  // the thread in `run` does, and would lend the loop at once
  std::atomic<int> wanted_{0};      // threads that wait for it to do so
  std::atomic<Time> crowded_until_{Time{}};

  // Held by whoever runs turns. The thread in `run` gives it away while it blocks.
  std::mutex turn_;
  // Loop thread, with `turn_` held.
  bool lends_ = false;                // inside `run`
  bool driven_ = false;               // by a thread that isn't the one in `run`
  std::optional<Time> asleep_until_;  // the thread in `run` blocks until then
  Events events_{};
  bool in_turn_ = false;
  TimerQueue timers_;
  SlotMap<Watched> watched_;
  std::deque<Task> ready_;  // taken from posted_, not run yet
  std::vector<Task> end_of_turn_;
  GapHandler gap_handler_;
  Poller* poller_ = nullptr;
  Duration last_seen_{};  // boot time at the last point where the loop was known to run; 0: never
  Time expected_more_{};  // the last `expect_more`
};

}  // namespace kvmend::env::posix
