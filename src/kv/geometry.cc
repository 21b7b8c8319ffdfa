#include "kv/geometry.h"

#include <algorithm>

namespace kvmend::kv {

std::uint32_t columns_per_rank(std::uint32_t total, std::uint32_t tp_size) {
  if (total == 0 || tp_size == 0) return 0;
  if (total % tp_size == 0) return total / tp_size;
  return tp_size % total == 0 ? 1 : 0;
}

std::optional<std::vector<Segment>> segments_of(const KvShape& shape, std::uint32_t tp_rank,
                                                std::uint32_t tp_size) {
  if (shape.total_columns == 0)
    return std::vector{Segment{.count = shape.columns, .first_holder = 0, .holders = tp_size}};
  std::vector<std::uint32_t> blocks = shape.groups;
  if (blocks.empty()) blocks.push_back(shape.total_columns);
  std::vector<Segment> out;
  std::uint32_t local = 0;
  std::uint32_t base = 0;
  for (const std::uint32_t total : blocks) {
    const std::uint32_t count = columns_per_rank(total, tp_size);
    if (count == 0) return std::nullopt;
    const std::uint32_t holders = total < tp_size ? tp_size / total : 1;
    const std::uint32_t part = tp_rank / holders;
    out.push_back({.local = local,
                   .global = base + part * count,
                   .count = count,
                   .first_holder = part * holders,
                   .holders = holders});
    local += count;
    base += total;
  }
  if (local != shape.columns) return std::nullopt;
  return out;
}

KvShape shape_of(const wire::KvLayout& layout, const wire::KvComponent& component,
                 std::size_t buffer) {
  if (!component.shapes.empty())
    return component.shapes[component.shape_of.empty() ? 0 : component.shape_of[buffer]];
  const auto pool = static_cast<KvPool>(component.kind);
  const bool ordered = layout.element_order == "nhd" || layout.element_order == "hnd";
  if (!ordered || layout.kv_heads == 0 || (!is_kv(pool) && pool != KvPool::kSwa)) return {};
  return {.rows = layout.page_tokens,
          .columns = layout.kv_heads,
          .total_columns = layout.total_kv_heads != 0 ? layout.total_kv_heads
                                                      : layout.kv_heads * layout.rank.tp_size,
          .columns_first = layout.element_order == "hnd"};
}

std::vector<SharedColumns> shared_columns(const std::vector<Segment>& source,
                                          const std::vector<Segment>& destination,
                                          std::uint32_t source_rank, std::uint32_t first_server) {
  std::vector<SharedColumns> out;
  for (const Segment& from : source) {
    if (source_rank != std::max(from.first_holder, first_server)) continue;  // another one sends
    for (const Segment& to : destination) {
      const std::uint32_t begin = std::max(from.global, to.global);
      const std::uint32_t end = std::min(from.global + from.count, to.global + to.count);
      if (begin >= end) continue;
      out.push_back({.source = from.local + begin - from.global,
                     .destination = to.local + begin - to.global,
                     .count = end - begin});
    }
  }
  return out;
}

}  // namespace kvmend::kv
