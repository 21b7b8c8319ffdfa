// Ids as distinct types: no implicit conversion between them or from integers.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace kvmend {

template <class Tag, class Rep = std::uint64_t>
struct StrongId {
  Rep value{};

  constexpr StrongId() = default;
  constexpr explicit StrongId(Rep v) : value(v) {}
  friend constexpr auto operator<=>(StrongId, StrongId) = default;
  [[nodiscard]] constexpr bool is_set() const { return value != Rep{}; }
};

/// Random 64-bit id drawn when an engine starts; 0 means "not known yet".
using Incarnation = StrongId<struct IncarnationTag>;
/// Number of a set of lanes; rises per (initiator incarnation, target incarnation).
using Epoch = StrongId<struct EpochTag>;
/// The receiver's permission for one (room, attempt, writer rank). 0 is never a grant.
using GrantId = StrongId<struct GrantTag>;
/// One submitted batch. 0 is never a transfer.
using TransferId = StrongId<struct TransferTag>;
/// The piece of a transfer that travels in one frame. Unique per initiator incarnation.
using ChunkId = StrongId<struct ChunkTag>;
/// The router's 63-bit `bootstrap_room`.
using RoomId = StrongId<struct RoomTag>;

/// A registered region as peers name it: a slot of the owner's table and the generation of that
/// slot. Deregistering raises the generation, so that a stale reference can never match again.
struct RegionRef {
  std::uint32_t slot = 0;
  std::uint32_t generation = 0;  ///< 0 is never a live generation
  friend constexpr auto operator<=>(const RegionRef&, const RegionRef&) = default;
};

}  // namespace kvmend

template <class Tag, class Rep>
struct std::hash<kvmend::StrongId<Tag, Rep>> {
  std::size_t operator()(kvmend::StrongId<Tag, Rep> id) const noexcept {
    return std::hash<Rep>{}(id.value);
  }
};
