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

PageSteps::PageSteps(const PageFit& fit) {
  const std::uint64_t end = std::uint64_t{fit.join} * fit.split;
  for (std::uint64_t unit = 0; unit < end;) {
    const auto source = static_cast<std::uint32_t>(unit % fit.split);
    const auto destination = static_cast<std::uint32_t>(unit % fit.join);
    if (source == 0) first_.push_back(static_cast<std::uint32_t>(steps_.size()));
    const std::uint32_t count = std::min(fit.split - source, fit.join - destination);
    steps_.push_back({.page = static_cast<std::uint32_t>(unit / fit.join),
                      .source = source,
                      .destination = destination,
                      .count = count});
    unit += count;
  }
  first_.push_back(static_cast<std::uint32_t>(steps_.size()));
}

std::uint32_t PageSteps::source_page(std::uint32_t step) const {
  return static_cast<std::uint32_t>(std::ranges::upper_bound(first_, step) - first_.begin()) - 1;
}

std::vector<PageRun> chunk_runs(const ChunkPages& chunk, const PageShare& share, const PageFit& fit,
                                const PageSteps& steps) {
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
    const std::size_t group = std::size_t{position} / fit.join * fit.split;
    const std::uint32_t end = steps.end(position % fit.join);
    for (std::uint32_t step = steps.begin(position % fit.join); step < end; ++step) {
      const std::size_t at = group + steps.all()[step].page;
      if (at >= chunk.destination.size()) break;  // tokens that nobody has
      runs.push_back(
          {.source = page, .destination = chunk.destination[at], .count = 1, .step = step});
    }
  }
  return runs;
}

}  // namespace kvmend::kv
