// The queue between the port of a foreign engine and the threads that call it.
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <unordered_map>

#include "base/thread_annotations.h"
#include "kvmend/foreign.h"

namespace kvmend {

namespace kv {
/// Errors: kInvalidArgument, naming the option.
[[nodiscard]] Status check_foreign_options(const ForeignOptions& options);
}  // namespace kv

/// Any thread.
class ForeignCalls::Impl {
 public:
  explicit Impl(ForeignOptions options) : options_(std::move(options)) {}

  /// Runs once on the thread that finishes the call, never after `close` has returned or inside
  /// `push`; `error`: what it threw, else empty.
  using Done = std::move_only_function<void(int rc, std::string error)>;

  /// Queues a call and returns its id.
  std::uint64_t push(ForeignCall call, Done done) KVM_EXCLUDES(mutex_);
  /// Takes a write back that nobody has taken. False: it runs, or has been finished.
  bool withdraw(std::uint64_t id) KVM_EXCLUDES(mutex_);
  std::optional<ForeignCall> take(ForeignCall::Kind kind, std::chrono::nanoseconds timeout)
      KVM_EXCLUDES(mutex_);
  void finish(std::uint64_t id, int rc, std::string error) KVM_EXCLUDES(mutex_);
  void close() KVM_EXCLUDES(mutex_);
  [[nodiscard]] bool closed() const KVM_EXCLUDES(mutex_);

  void publish(const ForeignStats& stats) KVM_EXCLUDES(mutex_);
  [[nodiscard]] ForeignStats stats() const KVM_EXCLUDES(mutex_);
  [[nodiscard]] const ForeignOptions& options() const { return options_; }

 private:
  const ForeignOptions options_;
  mutable Mutex mutex_;
  CondVar changed_;
  bool closed_ KVM_GUARDED_BY(mutex_) = false;
  std::uint64_t last_id_ KVM_GUARDED_BY(mutex_) = 0;
  std::deque<ForeignCall> writes_ KVM_GUARDED_BY(mutex_);
  std::deque<ForeignCall> probes_ KVM_GUARDED_BY(mutex_);
  std::unordered_map<std::uint64_t, Done> waiting_ KVM_GUARDED_BY(mutex_);  ///< queued or running
  ForeignStats stats_ KVM_GUARDED_BY(mutex_);
};

}  // namespace kvmend
