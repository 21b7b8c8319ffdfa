// Work for a loop's thread that another thread hands over, and what becomes of it when the loop has
// stopped: a loop destroys such tasks without running them.
#pragma once

#include <exception>
#include <future>
#include <memory>
#include <utility>

#include "env/event_loop.h"

namespace kvmend::env {

/// Kept in a task: runs `otherwise` when the task is destroyed before it has called `dismiss`, on
/// the thread that destroys it.
class IfUnrun {
 public:
  explicit IfUnrun(Task otherwise) : otherwise_(std::move(otherwise)) {}
  IfUnrun(IfUnrun&& from) noexcept : otherwise_(std::exchange(from.otherwise_, nullptr)) {}
  IfUnrun& operator=(IfUnrun&&) = delete;
  IfUnrun(const IfUnrun&) = delete;
  IfUnrun& operator=(const IfUnrun&) = delete;
  ~IfUnrun() {
    if (otherwise_) otherwise_();
  }
  void dismiss() { otherwise_ = nullptr; }

 private:
  Task otherwise_;
};

/// Runs `work` on the loop and waits for it; on the loop's own thread at once. False when the loop
/// has stopped: then it wasn't run. What it throws (no memory) is thrown here. Any thread.
inline bool run_and_wait(EventLoop& loop, Task work) {
  if (loop.in_loop_thread()) {
    work();
    return true;
  }
  const auto ran = std::make_shared<std::promise<bool>>();
  std::future<bool> answer = ran->get_future();
  loop.post(
      [work = std::move(work), ran, unrun = IfUnrun([ran] { ran->set_value(false); })]() mutable {
        unrun.dismiss();
        try {
          work();
        } catch (const std::exception&) {
          ran->set_exception(std::current_exception());
          return;
        }
        ran->set_value(true);
      });
  return answer.get();
}

}  // namespace kvmend::env
