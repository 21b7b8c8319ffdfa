#include "kv/plan.h"

#include "base/check.h"
#include "base/try.h"
#include "kv/layout.h"

namespace kvmend::kv {
namespace {

/// Same buffers, same pages: every page moves as a whole.
ComponentMap map_equal(std::uint32_t index, const KvComponent& here,
                       const wire::KvComponent& there) {
  ComponentMap map{.source_component = index, .destination_items = there.items};
  map.buffers.reserve(here.buffers.size());
  for (std::size_t i = 0; i < here.buffers.size(); ++i) {
    const KvBuffer& buffer = here.buffers[i];
    map.bytes_per_page += buffer.item_len;
    map.buffers.push_back({.source = static_cast<std::byte*>(buffer.base),
                           .source_item = buffer.item_len,
                           .region = there.regions[i],
                           .destination = there.base_offset.empty() ? 0 : there.base_offset[i],
                           .destination_item = item_len(there, i),
                           .length = buffer.item_len});
  }
  return map;
}

}  // namespace

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

Result<TransferPlan> TransferPlan::prepare(const KvLayout& here, const wire::KvLayout& there) {
  KVM_RETURN_IF_ERROR(check_mappable(here, there));
  TransferPlan plan;
  for (std::uint32_t c = 0; c < here.components.size(); ++c)
    plan.components_.push_back(map_equal(c, here.components[c], there.components[c]));
  return plan;
}

std::size_t TransferPlan::piece_count(std::uint32_t component,
                                      std::span<const PageRun> runs) const {
  std::size_t pages = 0;
  for (const PageRun& run : runs) pages += run.count;
  std::size_t pieces = 0;
  for (const BufferMap& map : components_[component].buffers)
    pieces += map.whole_pages() ? runs.size() : pages * map.count;
  return pieces;
}

void append_pieces(const BufferMap& map, std::span<const PageRun> runs,
                   std::vector<transport::Piece>& out) {
  for (const PageRun& run : runs) {
    std::byte* source = map.source + run.source * map.source_item;
    std::uint64_t destination = map.destination + run.destination * map.destination_item;
    if (map.whole_pages()) {
      out.push_back({.local = source,
                     .region = map.region,
                     .offset = destination,
                     .length = run.count * map.length});
      continue;
    }
    for (std::uint32_t page = 0; page < run.count; ++page) {
      for (std::uint32_t strip = 0; strip < map.count; ++strip)
        out.push_back({.local = source + strip * map.source_step,
                       .region = map.region,
                       .offset = destination + strip * map.destination_step,
                       .length = map.length});
      source += map.source_item;
      destination += map.destination_item;
    }
  }
}

void TransferPlan::append(std::uint32_t component, std::span<const PageRun> runs,
                          std::vector<transport::Piece>& out) const {
  for (const BufferMap& map : components_[component].buffers) append_pieces(map, runs, out);
}

}  // namespace kvmend::kv
