// What a sender or receiver and the loop share of a room. The loop writes, any thread reads.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/thread_annotations.h"
#include "base/time.h"
#include "kvmend/kv.h"

namespace kvmend::kv {

/// A room's public face. Outlives the room, the manager and the engine.
class RoomHandle {
 public:
  RoomHandle(RoomId room, Time created) : room_(room), entered_(created) {}

  [[nodiscard]] RoomId room() const { return room_; }
  [[nodiscard]] KvStatus status() const {
    return static_cast<KvStatus>(status_.load(std::memory_order_acquire));
  }

  /// Reports a status by the rules of kv/status_rules.h. Use `fail` for Failed.
  void advance(KvStatus next, Time now) KVM_EXCLUDES(mutex_);
  /// Ends the room with its first cause; later ones are ignored. `why` isn't OK.
  void fail(Status why, Time now) KVM_EXCLUDES(mutex_);

  void add_bytes(std::uint64_t bytes) { bytes_.fetch_add(bytes, std::memory_order_relaxed); }
  void count_chunk() { chunks_.fetch_add(1, std::memory_order_relaxed); }
  void add_retries(std::uint64_t n) { retries_.fetch_add(n, std::memory_order_relaxed); }
  /// The pages stay somebody's beyond the room's end; call before `fail`. Undone by
  /// `release_pages`.
  void hold_pages() { held_.store(true, std::memory_order_release); }
  void release_pages() { held_.store(false, std::memory_order_release); }
  [[nodiscard]] bool pages_released() const {
    return is_terminal(status()) && !held_.load(std::memory_order_acquire);
  }
  void set_aux_fields(std::shared_ptr<const std::vector<std::string>> names) KVM_EXCLUDES(mutex_);
  [[nodiscard]] std::vector<std::string> aux_fields() const KVM_EXCLUDES(mutex_);
  void set_abort_acknowledged() { acknowledged_.store(true, std::memory_order_release); }
  /// Who announced the pages, and how many tokens it has already.
  void set_announced(std::string session_id, std::uint64_t prefix_tokens) KVM_EXCLUDES(mutex_);
  [[nodiscard]] std::string announced_by() const KVM_EXCLUDES(mutex_);
  [[nodiscard]] std::uint64_t prefix_tokens() const {
    return prefix_tokens_.load(std::memory_order_acquire);
  }
  [[nodiscard]] bool abort_acknowledged() const {
    return acknowledged_.load(std::memory_order_acquire);
  }

  [[nodiscard]] Status failure() const KVM_EXCLUDES(mutex_);
  /// `now`: unset when nobody can tell the time any more (then the room has ended).
  [[nodiscard]] KvRoomMetrics metrics(std::optional<Time> now) const KVM_EXCLUDES(mutex_);
  /// Blocks until the status is at least `status` or terminal, or `timeout` has passed.
  KvStatus wait_for(KvStatus status, std::chrono::nanoseconds timeout) const KVM_EXCLUDES(mutex_);

  // ---- the caller's side of a sender: what it has promised so far.
  struct Promise {
    std::optional<std::uint32_t> num_pages;  ///< set by init
    std::uint32_t sent_pages = 0;
    bool complete = false;  ///< the last chunk is queued
  };
  Mutex promise_mutex;
  Promise promise KVM_GUARDED_BY(promise_mutex);

 private:
  void enter(KvStatus next, Time now) KVM_REQUIRES(mutex_);

  const RoomId room_;
  std::atomic<std::uint8_t> status_{static_cast<std::uint8_t>(KvStatus::kBootstrapping)};
  std::atomic<std::uint64_t> bytes_{0};
  std::atomic<std::uint64_t> retries_{0};
  std::atomic<std::uint64_t> chunks_{0};
  std::atomic<std::uint64_t> prefix_tokens_{0};
  std::atomic<bool> acknowledged_{false};
  std::atomic<bool> held_{false};

  mutable Mutex mutex_;
  mutable CondVar changed_;
  mutable std::uint32_t waiters_ KVM_GUARDED_BY(mutex_) = 0;
  std::string announced_by_ KVM_GUARDED_BY(mutex_);
  std::shared_ptr<const std::vector<std::string>> aux_fields_ KVM_GUARDED_BY(mutex_);
  Status failure_ KVM_GUARDED_BY(mutex_);
  Time entered_ KVM_GUARDED_BY(mutex_);  ///< the current status
  std::array<Duration, 5> spent_ KVM_GUARDED_BY(mutex_){};
};

}  // namespace kvmend::kv
