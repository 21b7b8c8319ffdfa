// The transfer plan: from two layouts and page indices to merged pieces. Pure; any thread.
//
// Prepared once per pair of layouts as a list of *buffer maps*; a chunk only walks them. A buffer
// map says how the bytes of one page move from a source buffer to a destination buffer:
//
//   source page      |..[len]....step....[len]....step....[len]..|      `count` strips of `length`
//   destination page |[len]..step..[len]..step..[len]............|
//
// Equal layouts have one strip, the whole page, per buffer. Other mappings (head slices, layers of
// several pipeline stages) are other lists of maps; nothing else changes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvmend/kv.h"
#include "transport/chunk.h"
#include "wire/kv_messages.h"

namespace kvmend::kv {

/// `count` pages that follow each other on both sides.
struct PageRun {
  std::uint32_t source = 0;
  std::uint32_t destination = 0;
  std::uint32_t count = 0;
  friend bool operator==(const PageRun&, const PageRun&) = default;
};

/// Pairs the lists position by position (their sizes are equal) and joins neighbours.
[[nodiscard]] std::vector<PageRun> merge_runs(std::span<const std::uint32_t> source,
                                              std::span<const std::uint32_t> destination);

struct BufferMap {
  std::byte* source = nullptr;    ///< page 0
  std::uint64_t source_item = 0;  ///< bytes from page to page
  RegionRef region;
  std::uint64_t destination = 0;  ///< offset of page 0 in the region
  std::uint64_t destination_item = 0;
  std::uint64_t length = 0;       ///< bytes of a strip
  std::uint32_t count = 1;        ///< strips per page
  std::uint64_t source_step = 0;  ///< from strip to strip
  std::uint64_t destination_step = 0;

  /// Whether pages that follow each other move as one piece.
  [[nodiscard]] bool whole_pages() const {
    return count == 1 && length == source_item && length == destination_item;
  }
};

/// Appends the pieces that move `runs` by one map.
void append_pieces(const BufferMap& map, std::span<const PageRun> runs,
                   std::vector<transport::Piece>& out);

/// How one component of the destination is filled.
struct ComponentMap {
  std::uint32_t source_component = 0;
  std::uint64_t bytes_per_page = 0;  ///< that this writer writes
  std::uint64_t destination_items = 0;
  std::vector<BufferMap> buffers;
};

class TransferPlan {
 public:
  /// `here` must be valid, `there` checked. Errors: kIncompatible with both sides' values.
  [[nodiscard]] static Result<TransferPlan> prepare(const KvLayout& here,
                                                    const wire::KvLayout& there);

  /// One map per component of the destination's layout.
  [[nodiscard]] std::span<const ComponentMap> components() const { return components_; }

  /// How many pieces `append` would add for these runs.
  [[nodiscard]] std::size_t piece_count(std::uint32_t component,
                                        std::span<const PageRun> runs) const;
  /// Appends the pieces that move `runs` of a component. Pages must be within both pools.
  void append(std::uint32_t component, std::span<const PageRun> runs,
              std::vector<transport::Piece>& out) const;

 private:
  std::vector<ComponentMap> components_;
};

}  // namespace kvmend::kv
