// The event loop of a simulated process. Its turns have the phases of the real one: gap handler,
// I/O events, posted tasks, due timers, end-of-turn tasks.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <vector>

#include "env/event_loop.h"
#include "env/sim/core.h"

namespace kvmend::env::sim {

/// Something whose readiness a loop reports.
class IoSource {
 public:
  virtual ~IoSource() = default;
  /// Whether there is anything that its owner wants to hear of.
  [[nodiscard]] virtual bool is_ready() const = 0;
  /// May destroy this or any other source.
  virtual void on_io() = 0;
};

/// Single-threaded. `in_loop_thread` is true unless another loop's turn is running.
class SimLoop final : public EventLoop {
 public:
  SimLoop(SimCore& core, Duration clock_offset);
  ~SimLoop() override;

  [[nodiscard]] Time now() const override { return core_.now + clock_offset_; }
  void post(Task task) override;
  TimerId add_timer(Time when, Task task) override;
  void cancel_timer(TimerId timer) override;
  void at_end_of_turn(Task task) override;
  [[nodiscard]] bool in_loop_thread() const override;
  void set_gap_handler(GapHandler handler) override { gap_handler_ = std::move(handler); }

  // For streams and listeners.

  std::uint64_t add_source(IoSource* source);
  void remove_source(std::uint64_t id);
  [[nodiscard]] bool has_source(std::uint64_t id) const { return sources_.contains(id); }
  /// The source may be ready now.
  void stir(std::uint64_t id);

  // For the process.

  void pause();
  void resume();
  void jump_clock(Duration by);
  /// Destroys all tasks; the loop never runs again.
  void shut_down();
  [[nodiscard]] bool is_paused() const { return paused_; }
  [[nodiscard]] bool is_shut_down() const { return shut_down_; }

 private:
  void schedule();
  void run_turn();
  void report_gap();
  void run_io();
  void run_posted();
  void run_timers();
  void run_end_of_turn();

  SimCore& core_;
  Duration clock_offset_;
  bool paused_ = false;
  bool shut_down_ = false;
  bool in_turn_ = false;
  Time paused_at_{};
  Duration gap_{};  // not served for so long, not reported yet
  Time next_io_turn_{};
  Time turn_time_{};  // of turn_event_
  EventQueue::Key turn_event_ = EventQueue::kNone;
  Time livelock_time_{};
  std::uint64_t turns_at_this_time_ = 0;

  std::map<std::uint64_t, IoSource*> sources_;
  std::set<std::uint64_t> hot_;  // may be ready
  std::uint64_t next_source_ = 1;
  std::deque<Task> posted_;
  std::map<std::pair<Time, std::uint64_t>, Task> timers_;
  std::map<std::uint64_t, Time> timer_times_;
  std::uint64_t next_timer_ = 1;
  std::vector<Task> end_of_turn_;
  GapHandler gap_handler_;
};

}  // namespace kvmend::env::sim
