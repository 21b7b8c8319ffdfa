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
  /// Which part of the destination's page (PageFit::join), or of the source's (split).
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

/// How pages of both sides go together: `join` source pages fill one of the destination (whose
/// tokens may be dealt out among as many ranks), or one source page fills `split` of them. One of
/// the two is 1.
struct PageFit {
  std::uint32_t join = 1;
  std::uint32_t split = 1;

  /// Destination pages that `total` source pages fill, the last one of either side perhaps not
  /// wholly.
  [[nodiscard]] constexpr std::size_t most(std::size_t total) const {
    return (total + join - 1) / join * split;
  }
  [[nodiscard]] constexpr bool takes(std::size_t total, std::size_t pages) const {
    const std::size_t end = most(total);
    return pages <= end && pages + split > end;
  }
  friend bool operator==(const PageFit&, const PageFit&) = default;
};

/// How many destination pages `total` source pages need: as many, or with dealt tokens a page for
/// each virtual page that was begun.
[[nodiscard]] constexpr std::size_t pages_needed(std::size_t total, std::uint32_t token_ranks) {
  return (total + token_ranks - 1) / token_ranks;
}

/// The runs of a chunk; of one page each, unless pages go one to one. `fit` takes the sizes of
/// `chunk`.
[[nodiscard]] std::vector<PageRun> chunk_runs(const ChunkPages& chunk, const PageShare& share,
                                              const PageFit& fit);

}  // namespace kvmend::kv
