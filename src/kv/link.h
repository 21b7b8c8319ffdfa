// How public handles reach the core: from any thread, and also after the manager has gone.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "base/thread_annotations.h"
#include "kv/core.h"
#include "kv/counters.h"
#include "kv/room_handle.h"

namespace kvmend::kv {

/// Shared by a manager, its senders and its receivers. Any thread.
class Link : public std::enable_shared_from_this<Link> {
 public:
  /// Blocks for a turn of the port's loop (not when called on it). Errors as of KvManager::create.
  static Result<std::shared_ptr<Link>> open(std::unique_ptr<EnginePort> port, KvRole role,
                                            KvLayout layout, KvOptions options);
  /// Closes the core. Afterwards every `post` fails its handle. Idempotent.
  void close() KVM_EXCLUDES(mutex_);

  /// Runs `work` on the loop, in the order of posting; without a core the handle fails with
  /// kShuttingDown instead.
  void post(std::shared_ptr<RoomHandle> handle, std::move_only_function<void(Core&)> work)
      KVM_EXCLUDES(mutex_);
  /// The loop's time; nothing once the core is closed.
  [[nodiscard]] std::optional<Time> now() const KVM_EXCLUDES(mutex_);

  [[nodiscard]] KvRole role() const { return role_; }
  [[nodiscard]] const KvLayout& layout() const { return layout_; }
  [[nodiscard]] KvManagerStats stats() const { return counters_.read(); }

 private:
  Link(KvRole role, KvLayout layout, KvOptions options)
      : role_(role), layout_(std::move(layout)), options_(options) {}

  const KvRole role_;
  const KvLayout layout_;
  const KvOptions options_;
  Counters counters_;
  mutable Mutex mutex_;
  env::EventLoop* loop_ KVM_GUARDED_BY(mutex_) = nullptr;  // unset: closed
  std::unique_ptr<Core> core_;                             // loop thread
};

}  // namespace kvmend::kv
