#include "env/posix/event_loop.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/contain.h"
#include "env/errors.h"
#include "env/posix/clock.h"

namespace kvmend::env::posix {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kMaxTasksPerTurn = 1'024;
constexpr std::size_t kMaxTimersPerTurn = 1'024;
// Spinning goes on only if more was expected within so many spin durations.
constexpr int kSpinActivityPeriods = 16;
constexpr Duration kWaitForLending = 20us;
// A core that wasn't given back for so long has other work, which would get a time slice of some
// milliseconds whenever we spin: for a while nobody does. Who blocks instead is woken at once.
constexpr Duration kYieldTookLong = 200us;
constexpr Duration kNoSpinWhenCrowded = 100ms;
// With a gap handler the loop sleeps no longer than this: only a sleep with a planned end shows
// that the process was stopped in the middle of it.
constexpr Duration kMaxSleepWithGapHandler = 250ms;
constexpr std::uint64_t kWakeId = 0;  // never an id of the slot map

}  // namespace

Result<std::unique_ptr<PosixEventLoop>> PosixEventLoop::create(const EventLoopOptions& options) {
  GuardedFd epoll = GuardedFd::open([] { return ::epoll_create1(EPOLL_CLOEXEC); });
  if (!epoll.is_open()) return std::unexpected(status_of_errno(errno, "epoll_create1"));
  GuardedFd wake = GuardedFd::open([] { return ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
  if (!wake.is_open()) return std::unexpected(status_of_errno(errno, "eventfd"));
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kWakeId;
  if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, wake.get(), &event) != 0)
    return std::unexpected(status_of_errno(errno, "epoll_ctl"));
  GuardedFd doorbell = GuardedFd::open([] { return ::epoll_create1(EPOLL_CLOEXEC); });
  if (!doorbell.is_open()) return std::unexpected(status_of_errno(errno, "epoll_create1"));
  if (::epoll_ctl(doorbell.get(), EPOLL_CTL_ADD, epoll.get(), &event) != 0)
    return std::unexpected(status_of_errno(errno, "epoll_ctl"));
  return std::unique_ptr<PosixEventLoop>(
      new PosixEventLoop(options, std::move(epoll), std::move(wake), std::move(doorbell)));
}

PosixEventLoop::PosixEventLoop(const EventLoopOptions& options, GuardedFd epoll, GuardedFd wake,
                               GuardedFd doorbell)
    : options_(options),
      epoll_(std::move(epoll)),
      wake_(std::move(wake)),
      doorbell_(std::move(doorbell)),
      owner_(std::this_thread::get_id()) {}

PosixEventLoop::~PosixEventLoop() {
  KVM_CHECK(!in_turn_, "a loop is destroyed inside its own turn");
  bind_to_this_thread();
  std::deque<Task> posted;
  {
    const MutexLock lock(mutex_);
    closed_ = true;
    posted.swap(posted_);
  }
  // The destructors of tasks may post, cancel timers or unwatch: they run while all of us is here.
  posted.clear();
  std::exchange(ready_, {}).clear();
  std::exchange(end_of_turn_, {}).clear();
  const TimerQueue timers = std::exchange(timers_, {});
  gap_handler_ = {};
}

// ------------------------------------------------------------------------------------- running

void PosixEventLoop::run() {
  const std::lock_guard turns(turn_);
  lends_ = true;
  while (turn_or_finish(-1ns)) {
  }
  lends_ = false;
}

bool PosixEventLoop::run_once(Duration timeout) {
  const std::lock_guard turns(turn_);
  return turn_or_finish(timeout);
}

bool PosixEventLoop::turn_or_finish(Duration timeout) {
  KVM_CHECK(!in_turn_, "a loop runs itself");
  bind_to_this_thread();
  if (!stop_.load(std::memory_order_acquire)) turn(timeout);
  if (!stop_.load(std::memory_order_acquire)) return true;
  finish();
  return false;
}

void PosixEventLoop::turn(Duration timeout) {
  in_turn_ = true;
  // Time between two calls of a caller that drives us counts as a gap, too: nobody was served.
  note_progress(Duration::zero());
  const Duration planned = plan_wait(timeout);
  const int events = wait(planned);
  note_progress(planned);
  dispatch_io(events);
  contain("looking at shared memory", [this] {
    if (poller_ != nullptr && poller_->ready()) poller_->run();
  });
  contain("taking tasks", [this] { run_posted(); });
  contain("taking timers", [this] { run_timers(); });
  run_end_of_turn();
  in_turn_ = false;
}

bool PosixEventLoop::drive(Task& first, const std::function<bool()>& done, Time until) {
  if (in_loop_thread()) return false;
  std::unique_lock turns(turn_, std::defer_lock);
  if (!take_lent(turns)) return false;
  {
    const MutexLock lock(mutex_);
    asleep_ = false;  // who posts from now on is heard by this thread
  }
  ring_doorbell(false);
  bind_to_this_thread();
  driven_ = true;
  if (poller_ != nullptr) poller_->set_awake(true);
  in_turn_ = true;
  run_task(std::exchange(first, {}));
  run_end_of_turn();
  in_turn_ = false;
  while (!done() && !stop_.load(std::memory_order_acquire)) {
    const Duration left = until == kForever ? Duration(-1) : until - now();
    if (until != kForever && left <= Duration::zero()) break;
    turn(left);
  }
  driven_ = false;
  last_driven_.store(now(), std::memory_order_relaxed);
  give_back();
  return true;
}

// Whether the loop is lent. While the thread in `run` only spins, it is asked to; one that
// somebody's driving woke for nothing will soon. Waiting a little for either is cheaper than to
// wait for a thread's answer, and who doesn't drive now wouldn't next time either: that thread
// would be awake.
bool PosixEventLoop::take_lent(std::unique_lock<std::mutex>& turns) {
  const auto lent = [&] {
    if (!turns.try_lock()) return false;
    if (asleep_until_ && !stop_.load(std::memory_order_acquire)) return true;
    turns.unlock();
    return false;
  };
  if (lent()) return true;
  const Time start = now();
  if (crowded(start) || (!spins_.load(std::memory_order_relaxed) && !driven_lately(start)))
    return false;
  wanted_.fetch_add(1, std::memory_order_relaxed);
  bool taken = false;
  do {
    let_others_run();
    taken = lent();
  } while (!taken && now() - start < kWaitForLending);
  wanted_.fetch_sub(1, std::memory_order_relaxed);
  return taken;
}

// The thread in `run` still blocks, as it planned to before: wakes it for what it can't know of.
void PosixEventLoop::give_back() {
  owner_.store({}, std::memory_order_release);
  ring_doorbell(true);
  bool due = stop_.load(std::memory_order_acquire) || !ready_.empty() || !end_of_turn_.empty() ||
             timers_.next_due() < *asleep_until_;
  if (poller_ != nullptr) {
    poller_->set_awake(false);
    due = due || poller_->ready();
  }
  const MutexLock lock(mutex_);
  if (due || !posted_.empty()) {
    wake();
  } else {
    asleep_ = true;
  }
}

// Tasks posted before the stop still run; later ones are dropped where they are posted.
void PosixEventLoop::finish() {
  {
    const MutexLock lock(mutex_);
    if (std::exchange(closed_, true)) return;
    std::ranges::move(posted_, std::back_inserter(ready_));
    posted_.clear();
  }
  in_turn_ = true;
  while (!ready_.empty()) {
    Task task = std::move(ready_.front());
    ready_.pop_front();
    run_task(std::move(task));
  }
  run_end_of_turn();
  in_turn_ = false;
}

void PosixEventLoop::stop() {
  stop_.store(true, std::memory_order_release);
  post([] {});  // wakes it
}

void PosixEventLoop::bind_to_this_thread() {
  owner_.store(std::this_thread::get_id(), std::memory_order_release);
}

bool PosixEventLoop::in_loop_thread() const {
  return owner_.load(std::memory_order_acquire) == std::this_thread::get_id();
}

Time PosixEventLoop::now() const {
  return monotonic_now();
}

// ------------------------------------------------------------------------------------- waiting

// How long this turn may wait; negative means without limit.
Duration PosixEventLoop::plan_wait(Duration timeout) {
  if (!ready_.empty() || !end_of_turn_.empty()) return Duration::zero();
  Duration wait = timeout;
  const auto cap = [&wait](Duration at_most) {
    if (wait < Duration::zero() || wait > at_most) wait = at_most;
  };
  const Time due = timers_.next_due();
  if (due != kForever) cap(std::max(due - now(), Duration::zero()));
  if (gap_handler_) cap(kMaxSleepWithGapHandler);
  return wait;
}

int PosixEventLoop::wait(Duration planned) {
  if (planned != Duration::zero() && may_spin()) {
    if (const int events = spin(planned); events != 0) return std::max(events, 0);
    // The rest of a short plan is lost to the spin at most once: timers are checked afterwards.
    if (planned > Duration::zero()) planned = std::max(planned - options_.spin, Duration::zero());
  }
  if (poller_ != nullptr && planned != Duration::zero()) {
    poller_->set_awake(false);
    if (poller_->ready()) planned = Duration::zero();
  }
  {
    const MutexLock lock(mutex_);
    if (!posted_.empty()) {
      planned = Duration::zero();
    } else if (planned != Duration::zero()) {
      asleep_ = true;
    }
  }
  const bool lend = lends_ && !driven_ && planned != Duration::zero();
  const int events = lend ? wait_lending(planned) : poll_epoll(epoll_, planned, events_);
  if (poller_ != nullptr) poller_->set_awake(true);
  const MutexLock lock(mutex_);
  asleep_ = false;
  return events;
}

// Others may run turns meanwhile. What is ready is asked for only once the loop is ours again:
// whoever drove it has served what it found.
int PosixEventLoop::wait_lending(Duration planned) {
  // A timer for which it wakes up anyway, some instructions late, is no reason to wake it earlier.
  asleep_until_ = planned < Duration::zero() ? kForever : now() + planned;
  asleep_until_ = std::min(*asleep_until_, timers_.next_due());
  owner_.store({}, std::memory_order_release);
  turn_.unlock();
  epoll_event rung{};
  poll_epoll(doorbell_, planned, std::span(&rung, 1));
  awakenings_.fetch_add(1, std::memory_order_relaxed);
  turn_.lock();
  bind_to_this_thread();
  asleep_until_.reset();
  return poll_epoll(epoll_, Duration::zero(), events_);
}

// Off: what becomes ready doesn't wake the thread in `run`. Switched on again, the kernel looks
// whether something is ready already, and wakes it then: nothing goes unnoticed in between.
void PosixEventLoop::ring_doorbell(bool on) {
  epoll_event event{};
  event.events = on ? EPOLLIN : 0U;
  KVM_CHECK(::epoll_ctl(doorbell_.get(), EPOLL_CTL_MOD, epoll_.get(), &event) == 0,
            "epoll_ctl of the doorbell");
}

// The thread in `run` leaves spinning to those who have driven lately: awake, it would only be in
// their way.
bool PosixEventLoop::may_spin() const {
  const Time at = now();
  return at - expected_more_ < options_.spin * kSpinActivityPeriods && !crowded(at) &&
         (driven_ || !driven_lately(at));
}

bool PosixEventLoop::driven_lately(Time at) const {
  return at - last_driven_.load(std::memory_order_relaxed) < options_.spin * kSpinActivityPeriods;
}

void PosixEventLoop::set_poller(Poller* poller) {
  KVM_CHECK(in_loop_thread(), "set_poller: not the loop thread");
  if (poller_ != nullptr) poller_->set_awake(false);
  poller_ = poller;
}

void PosixEventLoop::expect_more() {
  KVM_CHECK(in_loop_thread(), "expect_more: not the loop thread");
  expected_more_ = now();
}

// Polls without blocking. Positive: so many events; negative: something else is due; 0: nothing.
int PosixEventLoop::spin(Duration planned) {
  const Time end =
      now() + (planned < Duration::zero() ? options_.spin : std::min(planned, options_.spin));
  const bool lends = lends_ && !driven_;
  spins_.store(lends, std::memory_order_relaxed);
  int found = 0;
  do {
    if (has_posted_.load(std::memory_order_relaxed)) found = -1;
    if (poller_ != nullptr && poller_->ready()) found = -1;
    if (found == 0) found = poll_epoll(epoll_, Duration::zero(), events_);
    if (found != 0 || (lends && wanted_.load(std::memory_order_relaxed) > 0)) break;
    let_others_run();
  } while (now() < end);
  spins_.store(false, std::memory_order_relaxed);
  return found;
}

// Whoever we wait for may need this very core: on a busy machine spinning must not hold it.
void PosixEventLoop::let_others_run() {
  const Time before = now();
  ::sched_yield();
  const Time after = now();
  if (after - before > kYieldTookLong)
    crowded_until_.store(after + kNoSpinWhenCrowded, std::memory_order_relaxed);
}

int PosixEventLoop::poll_epoll(const GuardedFd& epoll, Duration timeout,
                               std::span<epoll_event> events) {
  const auto room = static_cast<int>(events.size());
  int count = -1;
  if (precise_wait_.load(std::memory_order_relaxed)) {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(timeout);
    const timespec ts{.tv_sec = seconds.count(), .tv_nsec = (timeout - seconds).count()};
    count = ::epoll_pwait2(epoll.get(), events.data(), room,
                           timeout < Duration::zero() ? nullptr : &ts, nullptr);
    // Kernels before 5.11, and sandboxes that don't know the call.
    if (count < 0 && (errno == ENOSYS || errno == EPERM))
      precise_wait_.store(false, std::memory_order_relaxed);
  }
  if (!precise_wait_.load(std::memory_order_relaxed)) {
    const auto ms = std::chrono::ceil<std::chrono::milliseconds>(timeout).count();
    count = ::epoll_wait(
        epoll.get(), events.data(), room,
        timeout < Duration::zero() ? -1 : static_cast<int>(std::min<std::int64_t>(ms, INT_MAX)));
  }
  KVM_CHECK(count >= 0 || errno == EINTR, "epoll_wait failed (a loop used after fork?)");
  return std::max(count, 0);
}

// Reports a gap if more time than planned has passed since the last call.
void PosixEventLoop::note_progress(Duration planned) {
  const Duration seen = boot_time();
  const Duration before = std::exchange(last_seen_, seen);
  if (before == Duration::zero() || planned < Duration::zero()) return;
  const Duration gap = seen - before - planned;
  if (gap <= options_.gap_threshold || !gap_handler_) return;
  // The handler may replace itself.
  GapHandler handler = std::exchange(gap_handler_, {});
  contain("the gap handler", [&] { handler(gap); });
  if (!gap_handler_) gap_handler_ = std::move(handler);
}

// ----------------------------------------------------------------------------- phases of a turn

void PosixEventLoop::dispatch_io(int count) {
  for (int i = 0; i < count; ++i) {
    // Copied: a handler must not be able to disturb the rest of the batch.
    const std::uint64_t id = events_[static_cast<std::size_t>(i)].data.u64;
    const std::uint32_t events = events_[static_cast<std::size_t>(i)].events;
    if (id == kWakeId) {
      drain_wake();
      continue;
    }
    // An earlier handler of this batch may have destroyed this watcher.
    Watched* found = watched_.find(id);
    if (found == nullptr) continue;
    IoWatcher* watcher = found->watcher;
    if (contain("handling a descriptor", [&] { watcher->on_io(events); })) continue;
    found = watched_.find(id);
    if (found != nullptr) contain("closing a descriptor", [&] { found->watcher->on_io_failed(); });
  }
}

void PosixEventLoop::run_task(Task task) {
  contain("a task of the loop", task);
}

void PosixEventLoop::run_posted() {
  {
    const MutexLock lock(mutex_);
    if (!posted_.empty()) {
      if (ready_.empty()) {
        ready_.swap(posted_);
      } else {
        std::ranges::move(posted_, std::back_inserter(ready_));
        posted_.clear();
      }
    }
    has_posted_.store(false, std::memory_order_relaxed);
  }
  if (ready_.empty()) return;
  for (std::size_t budget = kMaxTasksPerTurn; budget > 0 && !ready_.empty(); --budget) {
    Task task = std::move(ready_.front());
    ready_.pop_front();
    run_task(std::move(task));
  }
}

void PosixEventLoop::run_timers() {
  if (timers_.size() == 0) return;
  const Time at = now();
  const std::uint64_t limit = timers_.mark();
  for (std::size_t budget = kMaxTimersPerTurn; budget > 0; --budget) {
    Task task = timers_.pop_due(at, limit);
    if (!task) return;
    run_task(std::move(task));
  }
}

// What is added meanwhile runs at the end of the next turn, which doesn't wait.
void PosixEventLoop::run_end_of_turn() {
  std::vector<Task> tasks = std::exchange(end_of_turn_, {});
  for (Task& task : tasks) run_task(std::move(task));
}

// ------------------------------------------------------------------------------- tasks, timers

void PosixEventLoop::post(Task task) {
  const MutexLock lock(mutex_);
  if (closed_) return;  // the task dies with the caller's expression, outside of the lock
  posted_.push_back(std::move(task));
  has_posted_.store(true, std::memory_order_relaxed);
  if (std::exchange(asleep_, false)) wake();
}

// Under the lock: once it is released, a stopped loop may be destroyed. The write can't block, and
// EAGAIN would mean that the loop is signalled already.
void PosixEventLoop::wake() {
  wakeups_.fetch_add(1, std::memory_order_relaxed);
  const std::uint64_t one = 1;
  static_cast<void>(::write(wake_.get(), &one, sizeof one) == sizeof one);
}

void PosixEventLoop::drain_wake() {
  std::uint64_t count = 0;
  static_cast<void>(::read(wake_.get(), &count, sizeof count) == sizeof count);
}

TimerId PosixEventLoop::add_timer(Time when, Task task) {
  KVM_CHECK(in_loop_thread(), "add_timer: not the loop thread");
  return timers_.add(when, std::move(task));
}

void PosixEventLoop::cancel_timer(TimerId timer) {
  KVM_CHECK(in_loop_thread(), "cancel_timer: not the loop thread");
  timers_.cancel(timer);
}

void PosixEventLoop::at_end_of_turn(Task task) {
  KVM_CHECK(in_loop_thread(), "at_end_of_turn: not the loop thread");
  end_of_turn_.push_back(std::move(task));
}

void PosixEventLoop::set_gap_handler(GapHandler handler) {
  KVM_CHECK(in_loop_thread(), "set_gap_handler: not the loop thread");
  gap_handler_ = std::move(handler);
}

// ----------------------------------------------------------------------------------------- I/O

Result<IoId> PosixEventLoop::watch(int fd, std::uint32_t events, IoWatcher* watcher) {
  KVM_CHECK(in_loop_thread(), "watch: not the loop thread");
  const std::uint64_t id = watched_.insert({fd, watcher});
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    const int error = errno;
    watched_.take(id);
    return std::unexpected(status_of_errno(error, fmt::format("epoll_ctl of descriptor {}", fd)));
  }
  return IoId{id};
}

void PosixEventLoop::rewatch(IoId id, std::uint32_t events) {
  const Watched* found = watched_.find(id.value);
  KVM_CHECK(found != nullptr, "rewatch of an unknown id");
  epoll_event event{};
  event.events = events;
  event.data.u64 = id.value;
  KVM_CHECK(::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, found->fd, &event) == 0, "epoll_ctl MOD");
}

void PosixEventLoop::unwatch(IoId id) {
  const Watched* found = watched_.find(id.value);
  if (found == nullptr) return;
  // A descriptor of a forked child is /dev/null by now: nothing to remove then.
  epoll_event unused{};
  static_cast<void>(::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, found->fd, &unused));
  watched_.take(id.value);
}

}  // namespace kvmend::env::posix
