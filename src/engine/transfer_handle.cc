#include "engine/transfer_handle.h"

#include <algorithm>

#include "base/config.h"

namespace kvmend::engine {
namespace {

// A blocked thread costs 15 to 25 microseconds to wake; short transfers are over sooner. About
// 20 microseconds.
constexpr int kPausesBeforeBlocking = 600;

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

void TransferResult::set(const Status& status) {
  bool wake = false;
  {
    const MutexLock lock(mutex_);
    if (done_.load(std::memory_order_relaxed)) return;
    status_ = status;
    done_.store(true, std::memory_order_release);
    wake = waiting_ > 0;
  }
  if (wake) changed_.notify_all();
}

std::optional<Status> TransferResult::poll() const {
  if (!done_.load(std::memory_order_acquire)) return std::nullopt;
  return status_;
}

std::optional<Status> TransferResult::wait(std::chrono::nanoseconds timeout) const {
  for (int i = 0; i < kPausesBeforeBlocking; ++i) {
    if (auto result = poll()) return result;
    pause_briefly();
  }
  const MutexLock lock(mutex_);
  ++waiting_;
  changed_.wait_for(mutex_, std::min(timeout, config::kLongestWait),
                    [this] { return done_.load(std::memory_order_acquire); });
  --waiting_;
  return poll();
}

void LoopTransfer::cancel() {
  const std::shared_ptr<void> world = world_.lock();
  if (!world) return;
  loop_->post([core = core_, state = state_] {
    if (const auto alive = core.lock())
      (*alive)->cancel(state, Status(Code::kCancelled, Origin::kCaller, "cancelled by the caller"));
  });
}

}  // namespace kvmend::engine
