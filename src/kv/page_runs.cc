#include "kv/page_runs.h"

#include <algorithm>

#include "base/check.h"

namespace kvmend::kv {

std::vector<PageRun> merge_runs(std::span<const std::uint32_t> source,
                                std::span<const std::uint32_t> destination) {
  KVM_CHECK(source.size() == destination.size());
  std::vector<PageRun> runs;
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (!runs.empty()) {
      PageRun& last = runs.back();
      if (source[i] == last.source + last.count &&
          destination[i] == last.destination + last.count) {
        ++last.count;
        continue;
      }
    }
    runs.push_back({.source = source[i], .destination = destination[i], .count = 1});
  }
  return runs;
}

PageShare page_share(KvShare share, const KvRank& rank, KvPool pool) {
  const bool ranges = share == KvShare::kRanges && is_kv(pool);
  const bool dealt = share == KvShare::kInterleaved && (is_kv(pool) || pool == KvPool::kDsa);
  if (!ranges && !dealt) return {};
  if (dealt && rank.cp_size == 1)
    return {.kind = share, .rank = rank.tp_rank, .size = rank.tp_size};
  return {.kind = share, .rank = rank.cp_rank, .size = rank.cp_size};
}

PositionRange range_of(std::uint32_t total, std::uint32_t rank, std::uint32_t size) {
  const std::uint32_t each = total / size;
  const std::uint32_t more = total % size;
  const std::uint32_t begin = rank * each + std::min(rank, more);
  return {begin, begin + each + (rank < more ? 1 : 0)};
}

std::vector<PageRun> chunk_runs(const ChunkPages& chunk, const PageShare& share,
                                const PageFit& fit) {
  KVM_CHECK(fit.takes(chunk.total, chunk.destination.size()));
  KVM_CHECK(chunk.first + chunk.source.size() <= chunk.total);
  std::span<const std::uint32_t> source = chunk.source;
  std::uint32_t first = chunk.first;
  if (share.kind == KvShare::kRanges) {
    const PositionRange mine = range_of(chunk.total, share.rank, share.size);
    const auto end = first + static_cast<std::uint32_t>(source.size());
    const std::uint32_t from = std::clamp(mine.begin, first, end);
    const std::uint32_t to = std::clamp(mine.end, from, end);
    source = source.subspan(from - first, to - from);
    first = from;
  }
  const bool dealt_pages = share.kind == KvShare::kInterleaved;
  if (!dealt_pages && fit == PageFit{})
    return merge_runs(source, chunk.destination.subspan(first, source.size()));
  std::vector<PageRun> runs;
  runs.reserve(std::min(source.size() * fit.split, chunk.destination.size() + source.size()));
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (dealt_pages && source[i] % share.size != share.rank) continue;
    const std::uint32_t page = dealt_pages ? source[i] / share.size : source[i];
    const auto position = first + static_cast<std::uint32_t>(i);
    for (std::uint32_t part = 0; part < fit.split; ++part) {
      const std::size_t at = std::size_t{position} / fit.join * fit.split + part;
      if (at >= chunk.destination.size()) break;  // tokens that nobody has
      runs.push_back({.source = page,
                      .destination = chunk.destination[at],
                      .count = 1,
                      .phase = fit.split > 1 ? part : position % fit.join});
    }
  }
  return runs;
}

}  // namespace kvmend::kv
