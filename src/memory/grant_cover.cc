#include "memory/grant_cover.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <tuple>
#include <utility>

#include "memory/grant_table.h"

namespace kvmend::memory {

GrantCover::GrantCover(const std::vector<GrantComponent>& components) {
  pages_.reserve(components.size());
  for (std::uint32_t c = 0; c < components.size(); ++c) {
    const GrantComponent& component = components[c];
    pages_.emplace_back(component.pages);
    if (component.pages.empty()) continue;
    const std::uint64_t pages = std::uint64_t{component.pages.back()} + 1;
    for (const GrantComponent::Buffer& buffer : component.buffers) {
      const auto shift = std::has_single_bit(buffer.item_bytes)
                             ? static_cast<std::int8_t>(std::countr_zero(buffer.item_bytes))
                             : std::int8_t{-1};
      buffers_.push_back({.region = buffer.region,
                          .begin = buffer.base_offset,
                          .end = buffer.base_offset + pages * buffer.item_bytes,
                          .item_bytes = buffer.item_bytes,
                          .component = c,
                          .shift = shift});
    }
  }
  std::ranges::sort(buffers_, {},
                    [](const Buffer& b) { return std::tuple(b.region, b.begin, b.component); });
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    const bool first = i == 0 || buffers_[i - 1].region != buffers_[i].region;
    buffers_[i].reach = first ? buffers_[i].end : std::max(buffers_[i].end, buffers_[i - 1].reach);
  }
}

bool GrantCover::covers(const Buffer& buffer, std::uint64_t offset, std::uint64_t length,
                        Hint& hint) const {
  if (offset < buffer.begin || offset >= buffer.end || length > buffer.end - offset) return false;
  const std::uint64_t from = offset - buffer.begin;
  const std::uint64_t to = from + length - 1;
  // Both lie below 2^32: the buffer ends with a page whose index is 32 bits.
  const auto page = [&](std::uint64_t at) {
    return static_cast<std::uint32_t>(buffer.shift >= 0 ? at >> buffer.shift
                                                        : at / buffer.item_bytes);
  };
  return pages_[buffer.component].holds(page(from), page(to), hint.page);
}

// Whether `index` is the last buffer that starts at or before `offset` in the region.
bool GrantCover::is_last_candidate(std::uint32_t index, RegionRef region,
                                   std::uint64_t offset) const {
  if (index >= buffers_.size()) return false;
  const Buffer& buffer = buffers_[index];
  if (buffer.region != region || buffer.begin > offset) return false;
  if (index + 1 == buffers_.size()) return true;
  const Buffer& next = buffers_[index + 1];
  return next.region != region || next.begin > offset;
}

std::uint32_t GrantCover::component_of(RegionRef region, std::uint64_t offset, std::uint64_t length,
                                       Hint& hint) const {
  if (!is_last_candidate(hint.buffer, region, offset)) {
    if (is_last_candidate(hint.buffer + 1, region, offset)) {
      ++hint.buffer;
    } else {
      const auto after =
          std::ranges::upper_bound(buffers_, std::pair(region, offset), {},
                                   [](const Buffer& b) { return std::pair(b.region, b.begin); });
      if (after == buffers_.begin() || std::prev(after)->region != region) return kNone;
      hint.buffer = static_cast<std::uint32_t>(after - buffers_.begin()) - 1;
    }
  }
  // Backwards over the buffers that may reach `offset`: one, unless buffers overlap.
  std::uint32_t found = kNone;
  for (std::uint32_t i = hint.buffer; buffers_[i].region == region && buffers_[i].reach > offset;
       --i) {
    if (covers(buffers_[i], offset, length, hint)) found = buffers_[i].component;
    if (i == 0) break;
  }
  return found;
}

}  // namespace kvmend::memory
