// Grants: the receiver's permission to write (or read) pages. Safety rule 1 lives here: every read
// into pages asks `GrantTable` first, at that moment.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <set>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/time.h"
#include "kvmend/ids.h"
#include "kvmend/memory.h"
#include "kvmend/status.h"
#include "memory/grant_cover.h"
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
  Incarnation writer;  ///< only this initiator may use it; unset: anyone
  Access access = Access::kRemoteWrite;
  Time expires = kForever;
  std::vector<GrantComponent> components;
  std::vector<std::uint64_t> landed_bytes;  ///< per component, of completed frames; set by issue
};

/// Why a grant isn't there any more: decides how a late frame is answered.
enum class GrantEnd : std::uint8_t { kUnknown, kCompleted, kRevoked, kExpired };

/// Loop thread.
class GrantTable {
 public:
  /// `seed` (random) is where the ids start: those of an earlier incarnation mean nothing here.
  GrantTable(const RegionTable& regions, std::uint64_t seed) : regions_(regions), last_id_(seed) {}

  /// One observer (or nullptr), told inside `end` and `expire`.
  void set_observer(RevocationObserver* observer) { observer_ = observer; }
  /// `told` runs inside the first `resolve` that a grant allows (never for the standing one): its
  /// first bytes are here. It must not change the table.
  void set_on_first_use(std::move_only_function<void(const Grant&)> told) {
    on_first_use_ = std::move(told);
  }

  /// Issues a grant under a new id (`grant.id` is overwritten); ids are unique in this incarnation,
  /// never 0 and never the standing grant. Errors, origin caller: kInvalidArgument (no access,
  /// unsorted or repeated pages, too many components or buffers, page size 0), kNotRegistered
  /// (stale region), kOutOfRange (page beyond its region); kResourceExhausted
  /// (config::kMaxGrants).
  [[nodiscard]] Result<GrantId> issue(Grant grant);

  /// Ends a grant at once; later frames that carry it are refused: kPermissionDenied, or
  /// kAlreadyExists ("already complete") after `kCompleted`. Returns false when it wasn't live.
  bool end(GrantId id, GrantEnd how);

  /// Resolves a frame's slices to addresses if the grant covers all of them now. `where` receives
  /// one entry per slice (cleared first, and on failure). On failure `argument` (optional) receives
  /// the index of the slice. Errors: kPermissionDenied (no live grant, foreign writer, not
  /// covered), kOutOfRange, kNotRegistered, kAlreadyExists (completed); origin caller: the writer's
  /// plan is wrong, not the link.
  [[nodiscard]] Status resolve(GrantId id, Access want, Incarnation writer,
                               std::span<const wire::WireSlice> slices, Time now,
                               std::vector<iovec>& where, std::uint32_t* argument = nullptr);

  /// Whether what `resolve` allowed still stands: same grant live, not expired, and no region it
  /// may refer to has gone (`removals` as of the resolve). O(1); asked before every read.
  [[nodiscard]] bool still_allowed(GrantId id, Time now, std::uint64_t removals) const;

  /// Adds a completed frame's bytes to the components' counts. A chunk that is sent again since its
  /// acknowledgement was lost must not count twice, or a room could look complete with another
  /// chunk missing: give `chunk`, and a repeated one is ignored. Returns whether it counted; beyond
  /// config::kMaxLandedChunksPerGrant nothing does (the room then ends at its deadline).
  bool note_landed(GrantId id, std::span<const wire::WireSlice> slices, Incarnation writer = {},
                   ChunkId chunk = {});
  /// Whether that writer's chunk has landed under a live grant. Sent again, it must not be put into
  /// the pages once more: a copy that was corrupted on the way, or is cut short, would spoil bytes
  /// that are counted already. Never true for the standing grant. O(1).
  [[nodiscard]] bool has_landed(GrantId id, Incarnation writer, ChunkId chunk) const;

  /// A live grant, expired or not, or nullptr. Good until the grant ends.
  [[nodiscard]] const Grant* find(GrantId id) const;
  /// How a grant ended; kUnknown for live ones, and for those that never were or are forgotten.
  [[nodiscard]] GrantEnd ended(GrantId id) const;
  /// Ends every grant whose time has come; returns them, earliest first. O(log grants) each.
  std::vector<Grant> expire(Time now);
  /// The earliest expiry of a live grant, or kForever. O(1).
  [[nodiscard]] Time next_expiry() const;
  [[nodiscard]] std::size_t size() const { return live_.size(); }

 private:
  // Numbers of chunks are unique per writer only.
  using LandedChunk = std::pair<Incarnation, ChunkId>;
  struct HashLanded {
    std::size_t operator()(const LandedChunk& chunk) const {
      return chunk.first.value ^ chunk.second.value;  // the first is random
    }
  };
  struct Entry {
    Grant grant;
    GrantCover cover;
    std::unordered_set<LandedChunk, HashLanded> landed_chunks;
    bool used = false;
  };

  [[nodiscard]] Status check_new(const Grant& grant) const;
  [[nodiscard]] Status refusal(GrantId id) const;
  [[nodiscard]] Status resolve_standing(Access want, std::span<const wire::WireSlice> slices,
                                        std::vector<iovec>& where, std::uint32_t* argument) const;
  [[nodiscard]] Status resolve_room(const Entry& entry, std::span<const wire::WireSlice> slices,
                                    std::vector<iovec>& where, std::uint32_t* argument) const;
  void remember(GrantId id, GrantEnd how);

  const RegionTable& regions_;
  std::uint64_t last_id_;
  std::unordered_map<GrantId, Entry> live_;
  std::set<std::pair<Time, GrantId>> by_expiry_;  // of those that expire
  std::unordered_map<GrantId, GrantEnd> ended_;
  std::deque<GrantId> ended_order_;  // oldest first
  RevocationObserver* observer_ = nullptr;
  std::move_only_function<void(const Grant&)> on_first_use_;
};

}  // namespace kvmend::memory
