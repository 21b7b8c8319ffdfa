// The inside of pages: which columns (heads, channels) a tensor rank holds, and how the bytes that
// two ranks have in common lie on both sides. Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kvmend/kv_layout.h"
#include "wire/kv_messages.h"

namespace kvmend::kv {

/// Columns of one rank that follow each other in the model as well.
struct Segment {
  std::uint32_t local = 0;   ///< first column in the rank's page
  std::uint32_t global = 0;  ///< first column in the model
  std::uint32_t count = 0;
  std::uint32_t first_holder = 0;  ///< ranks [first_holder, first_holder + holders) hold the same
  std::uint32_t holders = 1;
  friend bool operator==(const Segment&, const Segment&) = default;
};

/// The segments of a rank, in local order; nothing when the columns can't be divided among
/// `tp_size` ranks or don't come to `shape.columns` (see `columns_expected`).
[[nodiscard]] std::optional<std::vector<Segment>> segments_of(const KvShape& shape,
                                                              std::uint32_t tp_rank,
                                                              std::uint32_t tp_size);

/// How many columns each of `tp_size` ranks holds of `total`: total / tp_size, or 1 that several
/// ranks share; 0 when neither divides the other.
[[nodiscard]] std::uint32_t columns_per_rank(std::uint32_t total, std::uint32_t tp_size);

/// The shape of a buffer's pages: the one given, or what the layout implies.
[[nodiscard]] KvShape shape_of(const wire::KvLayout& layout, const wire::KvComponent& component,
                               std::size_t buffer);

/// Columns that a source rank sends to a destination rank.
struct SharedColumns {
  std::uint32_t source = 0;  ///< first, in the source's page
  std::uint32_t destination = 0;
  std::uint32_t count = 0;
  friend bool operator==(const SharedColumns&, const SharedColumns&) = default;
};

/// What `source_rank` sends of the columns that both hold. Where several source ranks of those that
/// serve the destination, [first_server, ...), hold the same column, the first of them sends it.
[[nodiscard]] std::vector<SharedColumns> shared_columns(const std::vector<Segment>& source,
                                                        const std::vector<Segment>& destination,
                                                        std::uint32_t source_rank,
                                                        std::uint32_t first_server);

}  // namespace kvmend::kv
