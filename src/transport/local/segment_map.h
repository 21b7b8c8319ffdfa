// Peers' memory, mapped read-only after it has been checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "base/unique_fd.h"
#include "kvmend/status.h"

namespace kvmend::transport::local {

/// Maps a descriptor that a peer sent, read-only. It must be a memfd of exactly `bytes` that can
/// neither shrink nor grow any more (so that no access can raise a signal) and whose seals are
/// final. Errors: kProtocolError (not so), kResourceExhausted. Any thread.
Result<const void*> map_sealed(UniqueFd fd, std::uint64_t bytes);
void unmap_sealed(const void* at, std::uint64_t bytes);

/// Constant; any thread. Unmaps itself.
class MappedSegment {
 public:
  static Result<std::shared_ptr<const MappedSegment>> map(UniqueFd fd, std::uint64_t bytes);
  MappedSegment(const std::byte* base, std::uint64_t bytes) : base_(base), bytes_(bytes) {}
  ~MappedSegment() { unmap_sealed(base_, bytes_); }
  MappedSegment(const MappedSegment&) = delete;
  MappedSegment& operator=(const MappedSegment&) = delete;

  /// The bytes at [offset, offset + length), or null when they aren't all inside.
  [[nodiscard]] const std::byte* at(std::uint64_t offset, std::uint64_t length) const {
    return offset <= bytes_ && length <= bytes_ - offset ? base_ + offset : nullptr;
  }

 private:
  const std::byte* base_;
  std::uint64_t bytes_;
};

/// By segment id. Replaced as a whole when something changes, so that copies keep what they use.
using SegmentMap = std::map<std::uint32_t, std::shared_ptr<const MappedSegment>>;

}  // namespace kvmend::transport::local
