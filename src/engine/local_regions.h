// An immutable picture of the registered regions, to check addresses on the caller's thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "memory/region_table.h"

namespace kvmend::engine {

/// Constant; any thread.
class LocalRegions {
 public:
  /// `removals`: RegionTable::removals() at that moment.
  explicit LocalRegions(const std::vector<memory::Region>& regions, std::uint64_t removals = 0)
      : removals_(removals) {
    ranges_.reserve(regions.size());
    for (const memory::Region& region : regions)
      ranges_.push_back({reinterpret_cast<std::uintptr_t>(region.base),
                         reinterpret_cast<std::uintptr_t>(region.base) + region.length});
    std::ranges::sort(ranges_, {}, &Range::begin);
  }

  /// While the table's number is the same, what this says of a range still holds.
  [[nodiscard]] std::uint64_t removals() const { return removals_; }

  /// Whether one region contains all of [address, address + length). `hint` makes runs of lookups
  /// in the same region cheap; start it at 0.
  [[nodiscard]] bool contains(std::uintptr_t address, std::uint64_t length,
                              std::size_t& hint) const {
    if (hint < ranges_.size() && inside(ranges_[hint], address, length)) return true;
    const auto after = std::ranges::upper_bound(ranges_, address, {}, &Range::begin);
    if (after == ranges_.begin()) return false;
    hint = static_cast<std::size_t>(after - ranges_.begin()) - 1;
    return inside(ranges_[hint], address, length);
  }

 private:
  struct Range {
    std::uintptr_t begin;
    std::uintptr_t end;
  };
  static bool inside(const Range& range, std::uintptr_t address, std::uint64_t length) {
    return address >= range.begin && address <= range.end && length <= range.end - address;
  }
  std::vector<Range> ranges_;
  std::uint64_t removals_;
};

}  // namespace kvmend::engine
