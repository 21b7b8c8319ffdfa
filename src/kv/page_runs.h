// The pages of one chunk, paired with the pages they go to. Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kvmend/kv_layout.h"

namespace kvmend::kv {

/// `count` pages that follow each other on both sides.
struct PageRun {
  std::uint32_t source = 0;
  std::uint32_t destination = 0;
  std::uint32_t count = 0;
  /// Where the tokens of pages are dealt out: which part of the destination's virtual page.
  std::uint32_t phase = 0;
  friend bool operator==(const PageRun&, const PageRun&) = default;
};

/// Pairs the lists position by position (their sizes are equal) and joins neighbours.
[[nodiscard]] std::vector<PageRun> merge_runs(std::span<const std::uint32_t> source,
                                              std::span<const std::uint32_t> destination);

/// Which of a room's pages this rank brings (KvShare).
struct PageShare {
  KvShare kind = KvShare::kLeader;  ///< kRanges or kInterleaved; anything else: all of them
  std::uint32_t rank = 0;
  std::uint32_t size = 1;

  /// How many logical pages stand for one of the local pool.
  [[nodiscard]] std::uint32_t logical_per_local() const {
    return kind == KvShare::kInterleaved ? size : 1;
  }
};
[[nodiscard]] PageShare page_share(KvShare share, const KvRank& rank, KvPool pool);

/// One `send` of a component: the chunk slice [first, first + source.size()) of the room's pages.
struct ChunkPages {
  std::span<const std::uint32_t> source;
  std::span<const std::uint32_t> destination;  ///< of the whole room
  std::uint32_t first = 0;
  std::uint32_t total = 0;  ///< source pages of the whole room
};

/// Positions [begin, end) of `total` that rank `rank` of `size` brings with KvShare::kRanges: as
/// even as can be, the first ranks one more.
struct PositionRange {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
};
[[nodiscard]] PositionRange range_of(std::uint32_t total, std::uint32_t rank, std::uint32_t size);

/// How many destination pages `total` source pages need: as many, or with dealt tokens a page for
/// each virtual page that was begun.
[[nodiscard]] constexpr std::size_t pages_needed(std::size_t total, std::uint32_t token_ranks) {
  return (total + token_ranks - 1) / token_ranks;
}

/// The runs of a chunk. `token_ranks`: 1, or among how many ranks the destination deals tokens out;
/// then every run is one page. `destination` has pages_needed(total) entries.
[[nodiscard]] std::vector<PageRun> chunk_runs(const ChunkPages& chunk, const PageShare& share,
                                              std::uint32_t token_ranks);

}  // namespace kvmend::kv
