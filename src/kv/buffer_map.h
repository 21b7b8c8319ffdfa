// How the bytes of one page move from a source buffer to a destination buffer. Pure; any thread.
//
//   source page      |..[len]....step....[len]....step....[len]..|      strips of `length`
//   destination page |[len]..step..[len]..step..[len]............|
//
// Equal layouts have one strip, the whole page. Head slices, other element orders and dealt tokens
// have more, in two nested loops: over columns, and over rows.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/page_runs.h"
#include "kvmend/ids.h"
#include "transport/chunk.h"

namespace kvmend::kv {

/// One loop over strips.
struct Stride {
  std::uint32_t count = 1;
  std::uint64_t source = 0;  ///< bytes from strip to strip
  std::uint64_t destination = 0;
  friend bool operator==(const Stride&, const Stride&) = default;
};

/// Which rows of a page move.
enum class Rows : std::uint8_t {
  kPage = 0,   ///< all of them, one page to one page
  kSteps = 1,  ///< those of a step (PageSteps)
  kDealt = 2,  ///< of those the destination's own (decode context parallelism)
};

/// Rows that move together.
struct RowSpan {
  std::uint32_t source = 0;       ///< first row, in the source's page
  std::uint32_t destination = 0;  ///< first row
  std::uint32_t count = 0;
  friend bool operator==(const RowSpan&, const RowSpan&) = default;
};

/// How tokens are dealt out: rank `rank` of `ranks` holds the tokens t with t % ranks == rank, one
/// after the other, `page_tokens` of them in a page.
struct Dealing {
  std::uint32_t page_tokens = 1;
  std::uint32_t rank = 0;
  std::uint32_t ranks = 1;
};

/// The rank's rows of every step of `fit`; `source_tokens`: of a source page, whose rows are all
/// tokens.
[[nodiscard]] std::vector<RowSpan> dealt_rows(const PageFit& fit, const PageSteps& steps,
                                              std::uint32_t source_tokens, const Dealing& dealing);

struct BufferMap {
  std::byte* source = nullptr;    ///< page 0, first strip
  std::uint64_t source_item = 0;  ///< bytes from page to page
  RegionRef region;
  std::uint64_t destination = 0;  ///< offset of page 0's first strip in the region
  std::uint64_t destination_item = 0;
  std::uint64_t length = 0;  ///< bytes of a strip
  Stride columns;
  Stride rows;  ///< `count`: of kPage; the others' stands in their steps
  Rows kind = Rows::kPage;
  std::uint64_t source_row = 0;  ///< kSteps, kDealt: bytes of one row to the next at the source
  std::uint32_t unit_rows = 1;   ///< kSteps: rows of a unit

  /// Whether pages that follow each other move as one piece.
  [[nodiscard]] bool whole_pages() const {
    return kind == Rows::kPage && columns.count == 1 && rows.count == 1 && length == source_item &&
           length == destination_item;
  }
  /// Turns strips that touch on both sides into longer ones. Call once, when filled in.
  void fold();
};

/// What `runs` come to.
struct Amount {
  std::size_t pieces = 0;
  std::uint64_t bytes = 0;
  Amount& operator+=(const Amount& other) {
    pieces += other.pieces;
    bytes += other.bytes;
    return *this;
  }
};

/// What the steps of a component's runs mean.
struct StepTables {
  std::span<const PageStep> steps;
  std::span<const RowSpan> dealt;  ///< by step; empty where tokens aren't dealt
};

[[nodiscard]] Amount amount_of(const BufferMap& map, std::span<const PageRun> runs,
                               const StepTables& tables);
/// Appends the pieces that move `runs`.
void append_pieces(const BufferMap& map, std::span<const PageRun> runs, const StepTables& tables,
                   std::vector<transport::Piece>& out);

}  // namespace kvmend::kv
