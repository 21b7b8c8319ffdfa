#include "kv/foreign_calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/config.h"
#include "wire/kv_messages.h"

namespace kvmend {

Status kv::check_foreign_options(const ForeignOptions& options) {
  const auto refuse = [](std::string detail) {
    return Status{Code::kInvalidArgument, Origin::kCaller, std::move(detail)};
  };
  if (options.session_id.empty() || options.session_id.size() > wire::kMaxKvDataSessionBytes)
    return refuse(fmt::format("session_id of the foreign engine has {} bytes (1 to {})",
                              options.session_id.size(), wire::kMaxKvDataSessionBytes));
  const auto seconds = [](std::chrono::nanoseconds time) {
    return std::chrono::duration<double>(time).count();
  };
  for (const auto& [name, value] : {std::pair{"probe_interval", options.probe_interval},
                                    std::pair{"probe_max_interval", options.probe_max_interval},
                                    std::pair{"idle_timeout", options.idle_timeout}})
    if (value < std::chrono::milliseconds{1})
      return refuse(fmt::format("{} {} s (at least 0.001)", name, seconds(value)));
  if (options.probe_interval > options.probe_max_interval)
    return refuse(fmt::format("probe_interval {} s is above probe_max_interval {} s",
                              seconds(options.probe_interval),
                              seconds(options.probe_max_interval)));
  return {};
}

std::uint64_t ForeignCalls::Impl::push(ForeignCall call, Done done) {
  const MutexLock lock(mutex_);
  const std::uint64_t id = ++last_id_;
  if (closed_) return id;
  call.id = id;
  waiting_.emplace(call.id, std::move(done));
  (call.kind == ForeignCall::Kind::kProbe ? probes_ : writes_).push_back(std::move(call));
  changed_.notify_all();  // takers of either kind wait
  return id;
}

bool ForeignCalls::Impl::withdraw(std::uint64_t id) {
  const MutexLock lock(mutex_);
  if (std::erase_if(writes_, [&](const ForeignCall& call) { return call.id == id; }) == 0)
    return false;
  waiting_.erase(id);
  return true;
}

std::optional<ForeignCall> ForeignCalls::Impl::take(ForeignCall::Kind kind,
                                                    std::chrono::nanoseconds timeout) {
  const MutexLock lock(mutex_);
  std::deque<ForeignCall>& queue = kind == ForeignCall::Kind::kProbe ? probes_ : writes_;
  changed_.wait_for(mutex_, std::min(timeout, std::chrono::nanoseconds(config::kLongestWait)),
                    [&]() KVM_NO_THREAD_SAFETY_ANALYSIS { return closed_ || !queue.empty(); });
  if (closed_ || queue.empty()) return std::nullopt;
  ForeignCall call = std::move(queue.front());
  queue.pop_front();
  return call;
}

void ForeignCalls::Impl::finish(std::uint64_t id, int rc, std::string error) {
  // Under the lock: once `close` has returned nothing is told any more. `done` only posts.
  const MutexLock lock(mutex_);
  const auto at = waiting_.find(id);
  if (at == waiting_.end()) return;
  Done done = std::move(at->second);
  waiting_.erase(at);
  done(rc, std::move(error));
}

void ForeignCalls::Impl::close() {
  const MutexLock lock(mutex_);
  closed_ = true;
  writes_.clear();
  probes_.clear();
  waiting_.clear();
  changed_.notify_all();
}

bool ForeignCalls::Impl::closed() const {
  const MutexLock lock(mutex_);
  return closed_;
}

void ForeignCalls::Impl::publish(const ForeignStats& stats) {
  const MutexLock lock(mutex_);
  stats_ = stats;
}

ForeignStats ForeignCalls::Impl::stats() const {
  const MutexLock lock(mutex_);
  return stats_;
}

ForeignCalls::ForeignCalls(ForeignOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}

ForeignCalls::~ForeignCalls() = default;

std::optional<ForeignCall> ForeignCalls::take(ForeignCall::Kind kind,
                                              std::chrono::nanoseconds timeout) {
  return impl_->take(kind, timeout);
}

void ForeignCalls::finish(std::uint64_t id, int rc, std::string_view error) {
  impl_->finish(id, rc, std::string(error));
}

void ForeignCalls::close() {
  impl_->close();
}

bool ForeignCalls::closed() const {
  return impl_->closed();
}

ForeignStats ForeignCalls::stats() const {
  return impl_->stats();
}

const ForeignOptions& ForeignCalls::options() const {
  return impl_->options();
}

}  // namespace kvmend
