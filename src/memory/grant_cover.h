// What a grant covers, laid out for the lookup that every slice of every frame needs.
#pragma once

#include <cstdint>
#include <vector>

#include "kvmend/ids.h"
#include "memory/page_set.h"

namespace kvmend::memory {

struct GrantComponent;

/// Built once per grant, then read only. Any thread.
///
/// A slice is covered when it lies in the granted pages of *one* buffer; it may span several pages
/// that follow each other. Buffers may lie in one region, and overlap (pools of layer groups share
/// their memory); of several that cover a slice the first by (base offset, component) counts.
class GrantCover {
 public:
  /// Remembers the last place, since slices mostly come in order. One per loop over slices.
  struct Hint {
    std::uint32_t buffer = 0;
    std::uint32_t page = 0;  // of the component's PageSet
  };
  static constexpr std::uint32_t kNone = 0xFFFF'FFFFU;

  explicit GrantCover(const std::vector<GrantComponent>& components);

  /// The component that covers [offset, offset + length) of the region, or kNone. `length` > 0.
  /// O(1) when slices come in order, else O(log buffers), and of PageSet::holds.
  [[nodiscard]] std::uint32_t component_of(RegionRef region, std::uint64_t offset,
                                           std::uint64_t length, Hint& hint) const;

 private:
  struct Buffer {
    RegionRef region;
    std::uint64_t begin = 0;  // of page 0
    std::uint64_t end = 0;    // of the last granted page
    std::uint64_t reach = 0;  // highest `end` among the region's buffers up to this one
    std::uint64_t item_bytes = 0;
    std::uint32_t component = 0;
    std::int8_t shift = -1;  // of item_bytes, where that is a power of two
  };
  std::vector<PageSet> pages_;   // by component
  std::vector<Buffer> buffers_;  // by (region, begin, component)

  [[nodiscard]] bool covers(const Buffer& buffer, std::uint64_t offset, std::uint64_t length,
                            Hint& hint) const;
  [[nodiscard]] bool is_last_candidate(std::uint32_t index, RegionRef region,
                                       std::uint64_t offset) const;
};

}  // namespace kvmend::memory
