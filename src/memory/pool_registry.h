// The pools of this process, for the transport that shows them to peers of this host.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "base/thread_annotations.h"
#include "base/unique_fd.h"

namespace kvmend::memory {

/// The seals of every segment: it can neither shrink nor grow, and nobody can map it writable any
/// more (that last one where the kernel knows it, since 5.1).
inline constexpr int kSegmentSeals = 0x0001 | 0x0002 | 0x0004;  // SEAL, SHRINK, GROW
inline constexpr int kSealFutureWrite = 0x0010;

/// A sealed memfd, mapped twice: at `base` for its owner, and at `alias` for the engine's own
/// stores and loads, which the owner can't unmap under them. Constant after creation; any thread.
class PoolSegment {
 public:
  PoolSegment(std::uint64_t id, UniqueFd fd, std::byte* base, std::byte* alias, std::uint64_t bytes)
      : id_(id), fd_(std::move(fd)), base_(base), alias_(alias), bytes_(bytes) {}
  ~PoolSegment();
  PoolSegment(const PoolSegment&) = delete;
  PoolSegment& operator=(const PoolSegment&) = delete;

  [[nodiscard]] std::uint64_t id() const { return id_; }  ///< never used twice in a process
  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] std::byte* base() const { return base_; }
  [[nodiscard]] std::byte* alias() const { return alias_; }
  /// Whether [at, at + length) lies in the owner's mapping.
  [[nodiscard]] bool holds(const std::byte* at, std::uint64_t length) const {
    return at >= base_ && length <= bytes_ &&
           static_cast<std::uint64_t>(at - base_) <= bytes_ - length;
  }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

 private:
  std::uint64_t id_;
  UniqueFd fd_;
  std::byte* base_;
  std::byte* alias_;
  std::uint64_t bytes_;
};

using PoolSegments = std::vector<std::shared_ptr<PoolSegment>>;

/// One per process, since addresses are: an engine finds the pool behind a registered address here.
/// Any thread.
class PoolRegistry {
 public:
  static PoolRegistry& of_process();

  [[nodiscard]] std::uint64_t next_id() { return last_id_.fetch_add(1) + 1; }
  void add(const std::shared_ptr<PoolSegment>& segment);
  void remove(const PoolSegment& segment);
  [[nodiscard]] PoolSegments list() const;

  /// `changed` runs after every add and remove, under a lock: it may only post. Returns a handle.
  std::uint64_t subscribe(std::function<void()> changed);
  /// When this returns, `changed` isn't running and won't again.
  void unsubscribe(std::uint64_t handle);

 private:
  mutable Mutex mutex_;
  std::map<std::uint64_t, std::shared_ptr<PoolSegment>> segments_ KVM_GUARDED_BY(mutex_);
  std::map<std::uint64_t, std::function<void()>> subscribers_ KVM_GUARDED_BY(mutex_);
  std::uint64_t last_subscriber_ KVM_GUARDED_BY(mutex_) = 0;
  std::atomic<std::uint64_t> last_id_{0};
};

}  // namespace kvmend::memory
