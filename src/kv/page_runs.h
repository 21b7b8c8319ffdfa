// The pages of one chunk, paired with the pages they go to. Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "kvmend/kv_layout.h"

namespace kvmend::kv {

/// `count` pages that follow each other on both sides.
struct PageRun {
  std::uint32_t source = 0;
  std::uint32_t destination = 0;
  std::uint32_t count = 0;
  std::uint32_t step = 0;  ///< which part of the two pages have in common (PageSteps)
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

/// How pages of both sides go together: `join` of the source's hold as many tokens as `split` of
/// the destination's (whose tokens may be dealt out among several ranks). They have no common
/// divisor.
struct PageFit {
  std::uint32_t join = 1;
  std::uint32_t split = 1;

  /// Neither is 0.
  [[nodiscard]] static constexpr PageFit of(std::uint64_t source_tokens,
                                            std::uint64_t destination_tokens) {
    const std::uint64_t both = std::gcd(source_tokens, destination_tokens);
    return {.join = static_cast<std::uint32_t>(destination_tokens / both),
            .split = static_cast<std::uint32_t>(source_tokens / both)};
  }
  /// Destination pages that `total` source pages reach into.
  [[nodiscard]] constexpr std::uint64_t most(std::uint64_t total) const {
    return (total * split + join - 1) / join;
  }
  /// The same when the last source page holds one token only.
  [[nodiscard]] constexpr std::uint64_t least(std::uint64_t total) const {
    return total == 0 ? 0 : (total - 1) * split / join + 1;
  }
  /// Whether `pages` of the destination are what `total` source pages fill, the last one of either
  /// side perhaps not wholly.
  [[nodiscard]] constexpr bool takes(std::uint64_t total, std::uint64_t pages) const {
    return least(total) <= pages && pages <= most(total);
  }
  friend bool operator==(const PageFit&, const PageFit&) = default;
};

/// What a source page and a destination page have in common, counted in units: the longest runs of
/// tokens that no page of either side ends within. A source page is `split` units long, a
/// destination page `join`, and after join * split of them pages of both sides begin together
/// again.
///
///   join 3, split 4     source       |0 . . . |1 . . . |2 . . . |
///                       destination  |0 . . |1 . . |2 . . |3 . .|
///                       steps        | 3   |1| 2 | 2  |1 | 3    |
struct PageStep {
  std::uint32_t page = 0;         ///< of the destination, counted from where both begin together
  std::uint32_t source = 0;       ///< the first unit, in the source's page
  std::uint32_t destination = 0;  ///< in the destination's
  std::uint32_t count = 0;
  friend bool operator==(const PageStep&, const PageStep&) = default;
};

/// All steps of a fit, in the order of the tokens: join + split - 1 of them.
class PageSteps {
 public:
  PageSteps() : PageSteps(PageFit{}) {}
  explicit PageSteps(const PageFit& fit);

  [[nodiscard]] std::span<const PageStep> all() const { return steps_; }
  /// Those of the source page that is the n-th since both began together: [begin, end).
  [[nodiscard]] std::uint32_t begin(std::uint32_t n) const { return first_[n]; }
  [[nodiscard]] std::uint32_t end(std::uint32_t n) const { return first_[n + 1]; }
  /// The source page of a step, counted the same way.
  [[nodiscard]] std::uint32_t source_page(std::uint32_t step) const;

 private:
  std::vector<PageStep> steps_;
  std::vector<std::uint32_t> first_;  // by source page, and one more
};

/// The runs of a chunk; of one page each, unless pages go one to one. `fit`, whose `steps` these
/// are, takes the sizes of `chunk`.
[[nodiscard]] std::vector<PageRun> chunk_runs(const ChunkPages& chunk, const PageShare& share,
                                              const PageFit& fit, const PageSteps& steps);

}  // namespace kvmend::kv
