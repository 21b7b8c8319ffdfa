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

/// What a page's rows are to the destination.
enum class Rows : std::uint8_t {
  kPage = 0,    ///< all rows, one page to one page
  kDealt = 1,   ///< every token_ranks-th token (decode context parallelism)
  kJoined = 2,  ///< all rows, into one part of a page as large as PageFit::join pages
  kSplit = 3,   ///< one part of them, into a whole page
};

/// Rows of a source page that go to a destination rank, by phase.
struct DealtRows {
  std::uint32_t source = 0;       ///< first row
  std::uint32_t destination = 0;  ///< first row
  std::uint32_t count = 0;
  friend bool operator==(const DealtRows&, const DealtRows&) = default;
};

/// For pages of `tokens` tokens at position p of a room, p % ranks = phase: the tokens t with
/// (p * tokens + t) % ranks == rank, which follow each other at the destination.
[[nodiscard]] DealtRows dealt_rows(std::uint32_t tokens, std::uint32_t rank, std::uint32_t ranks,
                                   std::uint32_t phase);

struct BufferMap {
  std::byte* source = nullptr;    ///< page 0, first strip
  std::uint64_t source_item = 0;  ///< bytes from page to page
  RegionRef region;
  std::uint64_t destination = 0;  ///< offset of page 0's first strip in the region
  std::uint64_t destination_item = 0;
  std::uint64_t length = 0;  ///< bytes of a strip
  Stride columns;
  Stride rows;  ///< of kDealt: from one row to the next on each side, whatever their number
  Rows kind = Rows::kPage;
  /// Bytes from one part to the next: of the destination's page (kJoined), of the source's
  /// (kSplit).
  std::uint64_t phase = 0;

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

/// `phases`: DealtRows by phase, or none where tokens aren't dealt.
[[nodiscard]] Amount amount_of(const BufferMap& map, std::span<const PageRun> runs,
                               std::span<const DealtRows> phases);
/// Appends the pieces that move `runs`.
void append_pieces(const BufferMap& map, std::span<const PageRun> runs,
                   std::span<const DealtRows> phases, std::vector<transport::Piece>& out);

}  // namespace kvmend::kv
