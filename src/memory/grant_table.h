// Grants: the receiver's permission to write (or read) pages. Safety rule 1 lives here: every read
// into pages asks `GrantTable` first, at that moment.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/time.h"
#include "kvmend/ids.h"
#include "kvmend/status.h"
#include "memory/region_table.h"
#include "wire/frame.h"

namespace kvmend::memory {

/// The grant of raw users: covers every region whose access allows the operation.
inline constexpr GrantId kStandingGrant{1};

/// Pages of one component: the same page indices in each of `regions`.
struct GrantComponent {
  struct Buffer {
    RegionRef region;
    std::uint64_t base_offset = 0;  ///< where page 0 starts in the region
    std::uint64_t item_bytes = 0;   ///< bytes of one page in this buffer
  };
  std::vector<Buffer> buffers;
  std::vector<std::uint32_t> pages;  ///< sorted, unique
};

struct Grant {
  GrantId id;
  RoomId room;
  std::uint32_t attempt = 0;
  std::uint32_t writer_rank = 0;
  Incarnation writer;         ///< only this initiator may use it; unset: anyone
  Access access = Access::kRemoteWrite;
  Time expires = kForever;
  std::vector<GrantComponent> components;
  std::vector<std::uint64_t> landed_bytes;  ///< per component, of completed frames
};

/// Why a grant isn't there any more: decides how a late frame is answered.
enum class GrantEnd : std::uint8_t { kUnknown, kCompleted, kRevoked, kExpired };

/// Loop thread.
class GrantTable {
 public:
  explicit GrantTable(const RegionTable& regions) : regions_(regions) {}

  /// Issues a grant; ids are unique in this incarnation and never reused. `seed` starts the ids at
  /// a random place. Errors: kInvalidArgument (unsorted pages, stale region, page beyond its
  /// region), kResourceExhausted (config::kMaxGrants).
  [[nodiscard]] Result<GrantId> issue(Grant grant);

  /// Ends a grant at once; later frames that carry it are refused: kPermissionDenied, or
  /// kAlreadyExists ("already complete") after `kCompleted`. Returns false when it wasn't live.
  bool end(GrantId id, GrantEnd how);

  /// Resolves a frame's slices to addresses if the grant covers all of them now. `where` receives
  /// one entry per slice. On failure `argument` (optional) receives the index of the slice. Errors:
  /// kPermissionDenied (no live grant, foreign writer, not covered), kOutOfRange, kNotRegistered,
  /// kAlreadyExists (completed); origin caller: the writer's plan is wrong, not the link.
  [[nodiscard]] Status resolve(GrantId id, Access want, Incarnation writer,
                               std::span<const wire::WireSlice> slices, Time now,
                               std::vector<iovec>& where, std::uint32_t* argument = nullptr) const;

  /// Whether what `resolve` allowed still stands: same grant live, not expired, and no region it
  /// may refer to has gone (`removals` as of the resolve). O(1); asked before every read.
  [[nodiscard]] bool still_allowed(GrantId id, Time now, std::uint64_t removals) const;

  /// Adds a completed frame's bytes to the components' counts.
  void note_landed(GrantId id, std::span<const wire::WireSlice> slices);

  [[nodiscard]] const Grant* find(GrantId id) const;
  /// Ends every grant whose time has come; returns them. The earliest expiry left: `next_expiry`.
  std::vector<Grant> expire(Time now);
  [[nodiscard]] Time next_expiry() const;
  [[nodiscard]] std::size_t size() const { return live_.size(); }

 private:
  const RegionTable& regions_;
  std::unordered_map<GrantId, Grant> live_;
};

}  // namespace kvmend::memory
