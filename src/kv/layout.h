// Layouts: our own (pointers) and a peer's (regions), what makes one valid, and whether two can be
// mapped. Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kvmend/kv.h"
#include "wire/kv_messages.h"

namespace kvmend::kv {

/// Where a buffer lies in registered memory.
struct BufferPlace {
  RegionRef region;
  std::uint64_t offset = 0;  ///< of page 0
};

/// Errors: kInvalidArgument, naming component and value.
[[nodiscard]] Status check_layout(const KvLayout& layout);

/// The layout as peers see it. `places`: one per buffer of each component, or none at all where
/// only the geometry counts.
[[nodiscard]] wire::KvLayout describe(const KvLayout& layout,
                                      std::span<const std::vector<BufferPlace>> places);

/// What the parser can't know of a peer's layout: that offsets don't overflow. Errors:
/// kProtocolError.
[[nodiscard]] Status check_remote(const wire::KvLayout& layout);

/// Bytes of one page of buffer `buffer`; 0: elided.
[[nodiscard]] std::uint64_t item_len(const wire::KvComponent& component, std::size_t buffer);

/// The first component of a kind.
[[nodiscard]] std::optional<std::uint32_t> component_of(const KvLayout& layout, KvPool pool);
/// Windows over the same pages, whose two ends count them each for themselves: the reference pairs
/// them from the front and leaves what one end has more.
[[nodiscard]] bool counts_may_differ(KvPool pool);

/// Index of the kKv component (a valid layout has one), of the kAux component if there is one, and
/// of the state components in layout order.
[[nodiscard]] std::uint32_t kv_component(const KvLayout& layout);
[[nodiscard]] std::optional<std::uint32_t> aux_component(const KvLayout& layout);
[[nodiscard]] std::vector<std::uint32_t> state_components(const KvLayout& layout);

/// Checks indices against the pools and sorts them by component; components without pages are left
/// out. `distinct`: a page may occur once only (destinations). `device_pages`: of the kKvDevice
/// component. Errors: kOutOfRange,
/// kInvalidArgument (an index for a pool that the layout doesn't have, a page twice, more than
/// config::kMaxPagesPerRoom).
[[nodiscard]] Result<std::vector<wire::KvPages>> gather_pages(
    const KvLayout& layout, std::span<const std::uint32_t> pages,
    std::optional<std::uint32_t> aux_index, const KvStateIndices& states, bool distinct,
    std::span<const std::uint32_t> device_pages = {});

}  // namespace kvmend::kv
