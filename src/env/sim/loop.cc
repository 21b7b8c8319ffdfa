#include "env/sim/loop.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace kvmend::env::sim {
namespace {
// Posted tasks take no time; a loop that posts without end would stop the world's clock.
constexpr std::uint64_t kMaxTurnsAtOneTime = 1'000'000;
}  // namespace

SimLoop::SimLoop(SimCore& core, Duration clock_offset) : core_(core), clock_offset_(clock_offset) {}

SimLoop::~SimLoop() {
  shut_down();
}

// ----------------------------------------------------------------------------------- tasks, timers

void SimLoop::post(Task task) {
  if (shut_down_) return;
  posted_.push_back(std::move(task));
  schedule();
}

TimerId SimLoop::add_timer(Time when, Task task) {
  KVM_CHECK(in_loop_thread(), "add_timer: not the loop thread");
  const std::uint64_t id = next_timer_++;
  if (shut_down_) return {id};
  timers_.emplace(std::pair(when, id), std::move(task));
  timer_times_.emplace(id, when);
  schedule();
  return {id};
}

void SimLoop::cancel_timer(TimerId timer) {
  KVM_CHECK(in_loop_thread(), "cancel_timer: not the loop thread");
  const auto found = timer_times_.find(timer.value);
  if (found == timer_times_.end()) return;
  // The task's destructor may use the loop: it runs when the table is in order again.
  const auto gone = timers_.extract({found->second, timer.value});
  timer_times_.erase(found);
}

void SimLoop::at_end_of_turn(Task task) {
  KVM_CHECK(in_loop_thread(), "at_end_of_turn: not the loop thread");
  if (shut_down_) return;
  end_of_turn_.push_back(std::move(task));
  schedule();
}

bool SimLoop::in_loop_thread() const {
  return core_.running == nullptr || core_.running == this;
}

// --------------------------------------------------------------------------------------------- I/O

std::uint64_t SimLoop::add_source(IoSource* source) {
  const std::uint64_t id = next_source_++;
  sources_.emplace(id, source);
  stir(id);
  return id;
}

void SimLoop::remove_source(std::uint64_t id) {
  sources_.erase(id);
  hot_.erase(id);
}

void SimLoop::stir(std::uint64_t id) {
  if (shut_down_ || !sources_.contains(id)) return;
  hot_.insert(id);
  schedule();
}

// ------------------------------------------------------------------------------------ the process

void SimLoop::pause() {
  KVM_CHECK(core_.running != this, "a process can't pause itself in the middle of a turn");
  if (paused_ || shut_down_) return;
  paused_ = true;
  paused_at_ = core_.now;
  core_.events.cancel(std::exchange(turn_event_, EventQueue::kNone));
}

void SimLoop::resume() {
  if (!paused_) return;
  paused_ = false;
  gap_ += core_.now - paused_at_;
  // It wakes up even without work: the real loop never sleeps for long without looking around.
  posted_.emplace_back([] {});
  schedule();
}

void SimLoop::jump_clock(Duration by) {
  KVM_CHECK(by >= Duration::zero(), "a monotonic clock never goes back");
  clock_offset_ += by;
  gap_ += by;
  post([] {});
}

void SimLoop::shut_down() {
  if (std::exchange(shut_down_, true)) return;
  core_.events.cancel(std::exchange(turn_event_, EventQueue::kNone));
  hot_.clear();
  timer_times_.clear();
  // Swapped out first: destructors of tasks may come back to us.
  const auto posted = std::exchange(posted_, {});
  const auto timers = std::exchange(timers_, {});
  const auto end_of_turn = std::exchange(end_of_turn_, {});
  const auto gap_handler = std::exchange(gap_handler_, {});
}

// --------------------------------------------------------------------------------------- the turns

// Makes sure that the next turn comes when it is due, and not later.
void SimLoop::schedule() {
  if (paused_ || shut_down_ || in_turn_) return;
  Time when = kForever;
  if (!posted_.empty() || !end_of_turn_.empty()) when = core_.now;
  if (!hot_.empty()) when = std::min(when, std::max(core_.now, next_io_turn_));
  if (!timers_.empty() && timers_.begin()->first.first != kForever) {
    const Time due = timers_.begin()->first.first - clock_offset_;
    when = std::min(when, std::max(core_.now, due));
  }
  if (when == kForever) return;
  if (turn_event_ != EventQueue::kNone) {
    if (turn_time_ <= when) return;
    core_.events.cancel(turn_event_);
  }
  turn_time_ = when;
  turn_event_ = core_.events.add(when, [this] { run_turn(); });
}

void SimLoop::run_turn() {
  turn_event_ = EventQueue::kNone;
  if (livelock_time_ != core_.now) turns_at_this_time_ = 0;
  livelock_time_ = core_.now;
  ++turns_at_this_time_;
  KVM_CHECK(turns_at_this_time_ < kMaxTurnsAtOneTime, "a loop goes round without end");
  in_turn_ = true;
  core_.running = this;
  report_gap();
  run_io();
  run_posted();
  run_timers();
  run_end_of_turn();
  core_.running = nullptr;
  in_turn_ = false;
  schedule();
}

void SimLoop::report_gap() {
  const Duration gap = std::exchange(gap_, Duration::zero());
  if (gap <= core_.options.gap_threshold || !gap_handler_) return;
  core_.note("gap", static_cast<std::uint64_t>(gap.count()));
  GapHandler handler = std::exchange(gap_handler_, {});
  handler(gap);
  if (!gap_handler_ && !shut_down_) gap_handler_ = std::move(handler);
}

void SimLoop::run_io() {
  if (hot_.empty() || core_.now < next_io_turn_) return;
  next_io_turn_ = core_.now + core_.options.turn_time;
  // epoll promises no order; here the seed picks one.
  std::vector<std::uint64_t> batch(hot_.begin(), hot_.end());
  for (std::size_t i = batch.size(); i > 1; --i)
    std::swap(batch[i - 1], batch[core_.random.below(i)]);
  for (const std::uint64_t id : batch) {
    const auto found = sources_.find(id);
    if (found == sources_.end() || shut_down_) continue;
    if (found->second->is_ready()) {
      found->second->on_io();
    } else {
      hot_.erase(id);
    }
  }
}

void SimLoop::run_posted() {
  for (std::size_t n = posted_.size(); n > 0 && !posted_.empty(); --n) {
    Task task = std::move(posted_.front());
    posted_.pop_front();
    task();
  }
}

void SimLoop::run_timers() {
  const Time due = now();
  const std::uint64_t limit = next_timer_;  // those added meanwhile wait for the next turn
  for (;;) {
    const auto found = std::ranges::find_if(
        timers_, [&](const auto& entry) { return entry.first.second < limit; });
    if (found == timers_.end() || found->first.first > due) return;
    auto node = timers_.extract(found);
    timer_times_.erase(node.key().second);
    node.mapped()();
  }
}

void SimLoop::run_end_of_turn() {
  std::vector<Task> tasks = std::exchange(end_of_turn_, {});
  for (Task& task : tasks) {
    if (shut_down_) return;
    task();
  }
}

}  // namespace kvmend::env::sim
