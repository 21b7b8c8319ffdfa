// The registered regions of one engine, and what peers may do with them.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "base/bytes.h"
#include "base/sabotage.h"
#include "kvmend/ids.h"
#include "kvmend/memory.h"
#include "kvmend/status.h"

namespace kvmend::memory {

struct Region {
  RegionRef ref;
  std::byte* base = nullptr;
  std::uint64_t length = 0;
  MemoryKind kind = MemoryKind::kHost;
  Access access = Access::kNone;
};

/// Told before a permission ends, so that whoever copies on another thread stops first: when a call
/// returns, nothing is written under that permission any more. Loop thread.
class RevocationObserver {
 public:
  virtual ~RevocationObserver() = default;
  virtual void on_region_ending(const Region& region) = 0;
  virtual void on_grant_ending(GrantId grant) = 0;
};

/// Slots with generations: a slot is reused only with a higher generation, so a stale reference
/// never matches. Regions never overlap. Loop thread.
class RegionTable {
 public:
  /// Errors: kInvalidArgument (null or zero length, wrap-around), kAlreadyExists (overlap; names
  /// both ranges), kResourceExhausted (config::kMaxRegions).
  [[nodiscard]] Result<RegionRef> add(void* base, std::uint64_t length, MemoryKind kind,
                                      Access access);
  /// Removes the region that starts at `base`. Errors: kNotRegistered naming the address.
  [[nodiscard]] Status remove(const void* base);

  /// One observer (or nullptr), told inside `remove`.
  void set_observer(RevocationObserver* observer) { observer_ = observer; }

  /// The region, or nullptr when the reference is stale or unknown. O(1). Good until the next add
  /// or remove.
  [[nodiscard]] const Region* find(RegionRef ref) const {
    if (ref.slot >= slots_.size()) return nullptr;
    const Region& region = slots_[ref.slot];
    const bool stale = region.ref != ref && !KVM_SABOTAGE(stale_region_accepted);
    return region.base != nullptr && !stale ? &region : nullptr;
  }
  /// The region that contains [address, address + length), or nullptr. O(log regions).
  [[nodiscard]] const Region* find_containing(const void* address, std::uint64_t length) const;

  /// Raised by every add and remove.
  [[nodiscard]] std::uint64_t version() const { return version_; }
  /// Raised by every remove: a cached resolution is good while this stands.
  [[nodiscard]] std::uint64_t removals() const { return removals_; }
  [[nodiscard]] std::size_t size() const { return by_base_.size(); }
  [[nodiscard]] std::uint64_t total_bytes() const { return total_bytes_; }
  /// All live regions, by base address.
  [[nodiscard]] std::vector<Region> list() const;

 private:
  std::vector<Region> slots_;  // free: base is null, the generation is the next one to hand out
  std::vector<std::uint32_t> free_slots_;
  std::map<std::uintptr_t, std::uint32_t> by_base_;
  std::uint64_t version_ = 0;
  std::uint64_t removals_ = 0;
  std::uint64_t total_bytes_ = 0;
  RevocationObserver* observer_ = nullptr;
};

}  // namespace kvmend::memory
