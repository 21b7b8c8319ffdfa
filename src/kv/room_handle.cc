#include "kv/room_handle.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/config.h"
#include "kv/status_rules.h"

namespace kvmend::kv {

void RoomHandle::enter(KvStatus next, Time now) {
  const KvStatus before = status();
  if (now > entered_) {
    spent_[static_cast<std::size_t>(before)] += now - entered_;
    entered_ = now;
  }
  status_.store(static_cast<std::uint8_t>(next), std::memory_order_release);
  if (waiters_ > 0) changed_.notify_all();
}

void RoomHandle::advance(KvStatus next, Time now) {
  KVM_CHECK(next != KvStatus::kFailed, "use fail()");
  const MutexLock lock(mutex_);
  const KvStatus to = *next_status(status(), next);
  if (to != status()) enter(to, now);
}

void RoomHandle::fail(Status why, Time now) {
  KVM_CHECK(!why.is_ok(), "a failure needs a reason");
  const MutexLock lock(mutex_);
  if (is_terminal(status())) return;
  failure_ = std::move(why);
  enter(KvStatus::kFailed, now);
}

void RoomHandle::set_announced(std::string session_id, std::uint64_t prefix_tokens) {
  prefix_tokens_.store(prefix_tokens, std::memory_order_release);
  const MutexLock lock(mutex_);
  announced_by_ = std::move(session_id);
}

std::string RoomHandle::announced_by() const {
  const MutexLock lock(mutex_);
  return announced_by_;
}

void RoomHandle::set_aux_fields(std::shared_ptr<const std::vector<std::string>> names) {
  const MutexLock lock(mutex_);
  aux_fields_ = std::move(names);
}

std::vector<std::string> RoomHandle::aux_fields() const {
  const MutexLock lock(mutex_);
  return aux_fields_ ? *aux_fields_ : std::vector<std::string>{};
}

Status RoomHandle::failure() const {
  const MutexLock lock(mutex_);
  return failure_;
}

KvRoomMetrics RoomHandle::metrics(std::optional<Time> now) const {
  KvRoomMetrics out{.bytes = bytes_.load(std::memory_order_relaxed),
                    .chunks = chunks_.load(std::memory_order_relaxed),
                    .retries = retries_.load(std::memory_order_relaxed)};
  const MutexLock lock(mutex_);
  const auto in = [&](KvStatus status) KVM_NO_THREAD_SAFETY_ANALYSIS {
    Duration spent = spent_[static_cast<std::size_t>(status)];
    if (now && this->status() == status && *now > entered_) spent += *now - entered_;
    return spent;
  };
  out.bootstrapping = in(KvStatus::kBootstrapping);
  out.waiting = in(KvStatus::kWaitingForInput);
  out.transferring = in(KvStatus::kTransferring);
  if (!failure_.is_ok()) out.reason = failure_.to_string();
  return out;
}

KvStatus RoomHandle::wait_for(KvStatus least, std::chrono::nanoseconds timeout) const {
  const MutexLock lock(mutex_);
  ++waiters_;
  changed_.wait_for(mutex_, std::min(timeout, config::kLongestWait),
                    [&] { return is_terminal(status()) || status() >= least; });
  --waiters_;
  return status();
}

}  // namespace kvmend::kv
