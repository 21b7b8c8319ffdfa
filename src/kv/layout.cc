#include "kv/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "kv/fields.h"
#include "kv/geometry.h"

namespace kvmend::kv {
namespace {

constexpr std::uint64_t kMaxPoolBytes = std::uint64_t{1} << 48;

Status bad(std::string detail) {
  return {Code::kInvalidArgument, Origin::kCaller, "layout: " + std::move(detail)};
}

/// items * length + offset, or nothing when that is beyond any memory.
std::optional<std::uint64_t> pool_bytes(std::uint64_t items, std::uint64_t length,
                                        std::uint64_t offset) {
  if (length == 0 || length > kMaxPoolBytes || items > kMaxPoolBytes / length ||
      offset > kMaxPoolBytes)
    return std::nullopt;
  return items * length + offset;
}

Status check_shape(std::string_view name, const KvShape& shape, const KvRank& rank) {
  const auto text = [&] {
    return fmt::format("{} shape of {} rows, {} of {} columns", name, shape.rows, shape.columns,
                       shape.total_columns);
  };
  const auto beyond = [](std::uint32_t n) { return n > wire::kMaxKvColumns; };
  if (shape.rows == 0 || shape.columns == 0 || beyond(shape.rows) || beyond(shape.columns) ||
      beyond(shape.total_columns))
    return bad(fmt::format("{} (1 to {})", text(), wire::kMaxKvColumns));
  std::uint64_t sum = 0;
  for (const std::uint32_t group : shape.groups) sum += group;
  if (shape.groups.size() > wire::kMaxKvGroups || std::ranges::count(shape.groups, 0U) != 0 ||
      (!shape.groups.empty() && sum != shape.total_columns))
    return bad(fmt::format("{} in {} groups of together {}", text(), shape.groups.size(), sum));
  if (!segments_of(shape, rank.tp_rank, rank.tp_size))
    return bad(fmt::format("{}: tp_size {} can't have that", text(), rank.tp_size));
  return {};
}

Status check_buffer(std::string_view name, std::size_t i, const KvComponent& component) {
  const KvBuffer& buffer = component.buffers[i];
  if (buffer.shape >= std::max<std::size_t>(component.shapes.size(), 1))
    return bad(fmt::format("{} buffer {} has shape {} of {}", name, i, buffer.shape,
                           component.shapes.size()));
  if (buffer.item_len == 0) return {};
  if (buffer.base == nullptr) return bad(fmt::format("{} buffer {} is null", name, i));
  if (!pool_bytes(component.items, buffer.item_len, 0))
    return bad(fmt::format("{} buffer {} has {} items of {} bytes", name, i, component.items,
                           buffer.item_len));
  return {};
}

/// Bytes of a row of an aux buffer; 0 where there is none.
auto row_bytes(const KvComponent& component) {
  return [&component](std::uint32_t buffer) {
    return buffer < component.buffers.size() ? component.buffers[buffer].item_len : 0;
  };
}

Status check_fields(std::string_view name, const KvComponent& component) {
  if (component.fields.empty()) return {};
  if (component.pool != KvPool::kAux || !component.shapes.empty() || !component.layer_ids.empty())
    return bad(
        fmt::format("{} has named fields: only aux may, without shapes and layer ids", name));
  const auto row = row_bytes(component);
  if (auto error =
          field_error(complete_fields(component.fields, row), component.buffers.size(), row))
    return bad(fmt::format("{} {}", name, *error));
  return {};
}

Status check_component(const KvComponent& component, const KvRank& rank) {
  const std::string_view name = kv_pool_name(component.pool);
  if (component.buffers.empty() || component.buffers.size() > wire::kMaxKvBuffers)
    return bad(fmt::format("{} has {} buffers (1 to {})", name, component.buffers.size(),
                           wire::kMaxKvBuffers));
  if (component.items == 0 || component.items > (std::uint64_t{1} << 32))
    return bad(fmt::format("{} has {} items (1 to 2^32)", name, component.items));
  if (component.dtype.size() > wire::kMaxKvDtypeBytes)
    return bad(fmt::format("{} dtype \"{}\" is longer than {} bytes", name, component.dtype,
                           wire::kMaxKvDtypeBytes));
  if (!component.layer_ids.empty() && component.layer_ids.size() != component.buffers.size())
    return bad(fmt::format("{} has {} buffers but {} layer ids", name, component.buffers.size(),
                           component.layer_ids.size()));
  if (component.shapes.size() > wire::kMaxKvShapes)
    return bad(fmt::format("{} has {} shapes (at most {})", name, component.shapes.size(),
                           wire::kMaxKvShapes));
  for (const KvShape& shape : component.shapes)
    if (Status status = check_shape(name, shape, rank); !status.is_ok()) return status;
  for (std::size_t i = 0; i < component.buffers.size(); ++i)
    if (Status status = check_buffer(name, i, component); !status.is_ok()) return status;
  return check_fields(name, component);
}

Status check_rank(const KvRank& rank) {
  for (const auto& [name, at, size] :
       {std::tuple{"tp", rank.tp_rank, rank.tp_size}, std::tuple{"pp", rank.pp_rank, rank.pp_size},
        std::tuple{"dp", rank.dp_rank, rank.dp_size}, std::tuple{"cp", rank.cp_rank, rank.cp_size},
        std::tuple{"dcp", rank.dcp_rank, rank.dcp_size}})
    if (at >= size || size > wire::kMaxKvRanks)
      return bad(fmt::format("{}_rank {} of {}", name, at, size));
  return {};
}

/// Heads of this rank against those of the model.
Status check_heads(const KvLayout& layout) {
  if (std::uint64_t{layout.kv_heads} * layout.rank.tp_size > wire::kMaxKvColumns ||
      layout.total_kv_heads > wire::kMaxKvColumns)
    return bad(fmt::format("kv_heads {} of {}, tp_size {}", layout.kv_heads, layout.total_kv_heads,
                           layout.rank.tp_size));
  if (layout.total_kv_heads == 0 || layout.kv_heads == 0) return {};
  const std::uint32_t each = columns_per_rank(layout.total_kv_heads, layout.rank.tp_size);
  if (each == layout.kv_heads) return {};
  if (each == 0)
    return bad(fmt::format("{} kv heads can't be divided among tp_size {}", layout.total_kv_heads,
                           layout.rank.tp_size));
  return bad(fmt::format("kv_heads is {}, but of {} each of {} ranks has {}", layout.kv_heads,
                         layout.total_kv_heads, layout.rank.tp_size, each));
}

}  // namespace

std::uint64_t item_len(const wire::KvComponent& component, std::size_t buffer) {
  return component.item_len[component.item_len.size() == 1 ? 0 : buffer];
}

bool counts_may_differ(KvPool pool) {
  return pool == KvPool::kSwa || pool == KvPool::kDsa || pool == KvPool::kMinimaxIndexK ||
         pool == KvPool::kBlockScale || pool == KvPool::kBlockScaleSwa;
}

Status check_layout(const KvLayout& layout) {
  if (layout.components.empty() || layout.components.size() > wire::kMaxKvComponents)
    return bad(
        fmt::format("{} components (1 to {})", layout.components.size(), wire::kMaxKvComponents));
  if (layout.page_tokens == 0 || layout.page_tokens > wire::kMaxKvColumns)
    return bad(fmt::format("page_tokens is {}", layout.page_tokens));
  if (layout.element_order.size() > wire::kMaxKvElementOrderBytes)
    return bad(fmt::format("element_order \"{}\"", layout.element_order));
  if (layout.share > KvShare::kInterleaved)
    return bad(fmt::format("share {}", static_cast<std::uint32_t>(layout.share)));
  const auto count = [&](KvPool pool) {
    return std::ranges::count(layout.components, pool, &KvComponent::pool);
  };
  if (count(KvPool::kKv) != 1)
    return bad(fmt::format("{} components of kind kv (exactly 1)", count(KvPool::kKv)));
  for (const KvPool pool : {KvPool::kAux, KvPool::kKvDevice})
    if (count(pool) > 1)
      return bad(
          fmt::format("{} components of kind {} (at most 1)", count(pool), kv_pool_name(pool)));
  if (Status status = check_rank(layout.rank); !status.is_ok()) return status;
  if (Status status = check_heads(layout); !status.is_ok()) return status;
  for (const KvComponent& component : layout.components)
    if (Status status = check_component(component, layout.rank); !status.is_ok()) return status;
  return {};
}

namespace {

wire::KvComponent describe_component(const KvComponent& from, std::span<const BufferPlace> places) {
  wire::KvComponent to{.kind = static_cast<std::uint32_t>(from.pool),
                       .items = from.items,
                       .layer_ids = from.layer_ids,
                       .dtype = from.dtype,
                       .shapes = from.shapes,
                       .memory = static_cast<std::uint32_t>(from.kind),
                       .fields = complete_fields(from.fields, row_bytes(from)),
                       .fields_version = from.fields.empty() ? 0 : from.fields_version};
  to.regions.resize(from.buffers.size());
  for (std::size_t i = 0; i < places.size(); ++i) {
    to.regions[i] = places[i].region;
    to.base_offset.push_back(places[i].offset);
  }
  for (std::uint32_t i = 0; i < from.buffers.size(); ++i) {
    to.item_len.push_back(from.buffers[i].item_len);
    to.shape_of.push_back(from.buffers[i].shape);
    if (from.buffers[i].optional) to.optional.push_back(i);
  }
  if (std::ranges::all_of(to.item_len, [&](auto length) { return length == to.item_len[0]; }))
    to.item_len.resize(1);
  const auto is_zero = [](auto value) { return value == 0; };
  if (std::ranges::all_of(to.base_offset, is_zero)) to.base_offset.clear();
  if (std::ranges::all_of(to.shape_of, is_zero)) to.shape_of.clear();
  return to;
}

}  // namespace

wire::KvLayout describe(const KvLayout& layout, std::span<const std::vector<BufferPlace>> places) {
  wire::KvLayout out{.page_tokens = layout.page_tokens,
                     .kv_heads = layout.kv_heads,
                     .head_dim = layout.head_dim,
                     .element_order = layout.element_order,
                     .rank = layout.rank,
                     .total_kv_heads = layout.total_kv_heads,
                     .share = static_cast<std::uint32_t>(layout.share),
                     .version = wire::kKvLayoutVersion};
  for (std::size_t c = 0; c < layout.components.size(); ++c)
    out.components.push_back(
        describe_component(layout.components[c],
                           places.empty() ? std::span<const BufferPlace>{} : std::span(places[c])));
  return out;
}

Status check_remote(const wire::KvLayout& layout) {
  for (const wire::KvComponent& component : layout.components) {
    for (std::size_t i = 0; i < component.regions.size(); ++i) {
      if (item_len(component, i) == 0) continue;  // elided
      const std::uint64_t offset = component.base_offset.empty() ? 0 : component.base_offset[i];
      if (component.items == 0 || !pool_bytes(component.items, item_len(component, i), offset))
        return {Code::kProtocolError, Origin::kPeer,
                fmt::format("layout: {} buffer {} has {} items of {} bytes from offset {}",
                            kv_pool_name(static_cast<KvPool>(component.kind)), i, component.items,
                            item_len(component, i), offset)};
    }
    const auto row = [&](std::uint32_t buffer) {
      return buffer < component.regions.size() ? item_len(component, buffer) : 0;
    };
    if (auto error = field_error(component.fields, component.regions.size(), row))
      return {
          Code::kProtocolError, Origin::kPeer,
          fmt::format("layout: {} {}", kv_pool_name(static_cast<KvPool>(component.kind)), *error)};
  }
  return {};
}

std::uint32_t kv_component(const KvLayout& layout) {
  const auto at = std::ranges::find(layout.components, KvPool::kKv, &KvComponent::pool);
  return static_cast<std::uint32_t>(at - layout.components.begin());
}

std::optional<std::uint32_t> component_of(const KvLayout& layout, KvPool pool) {
  const auto at = std::ranges::find(layout.components, pool, &KvComponent::pool);
  if (at == layout.components.end()) return std::nullopt;
  return static_cast<std::uint32_t>(at - layout.components.begin());
}

std::optional<std::uint32_t> aux_component(const KvLayout& layout) {
  return component_of(layout, KvPool::kAux);
}

std::vector<std::uint32_t> state_components(const KvLayout& layout) {
  std::vector<std::uint32_t> out;
  for (std::uint32_t c = 0; c < layout.components.size(); ++c)
    if (is_state(layout.components[c].pool)) out.push_back(c);
  return out;
}

}  // namespace kvmend::kv
