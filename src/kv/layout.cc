#include "kv/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/config.h"

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

Status check_component(const KvComponent& component) {
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
  for (std::size_t i = 0; i < component.buffers.size(); ++i) {
    const KvBuffer& buffer = component.buffers[i];
    if (buffer.base == nullptr) return bad(fmt::format("{} buffer {} is null", name, i));
    if (!pool_bytes(component.items, buffer.item_len, 0))
      return bad(fmt::format("{} buffer {} has {} items of {} bytes", name, i, component.items,
                             buffer.item_len));
  }
  return {};
}

/// Collects differences into one sentence.
class Differences {
 public:
  template <class Here, class There>
  void compare(std::string_view what, const Here& here, const There& there) {
    if (here != there) add(fmt::format("{} {} here, {} there", what, here, there));
  }
  [[nodiscard]] Status status() const {
    if (text_.empty()) return {};
    return {Code::kIncompatible, Origin::kPeer, "layouts can't be mapped: " + text_};
  }

 private:
  void add(const std::string& one) {
    if (text_.size() > wire::kMaxKvReasonBytes) return;
    if (!text_.empty()) text_ += "; ";
    text_ += one;
  }
  std::string text_;
};

void compare_components(const KvComponent& here, const wire::KvComponent& there,
                        Differences& differences) {
  const std::string_view name = kv_pool_name(here.pool);
  differences.compare(fmt::format("{} pool", name), name,
                      kv_pool_name(static_cast<KvPool>(there.kind)));
  differences.compare(fmt::format("{} dtype", name), here.dtype, there.dtype);
  differences.compare(fmt::format("{} buffers", name), here.buffers.size(), there.regions.size());
  const std::size_t buffers = std::min(here.buffers.size(), there.regions.size());
  for (std::size_t i = 0; i < buffers; ++i) {
    if (here.buffers[i].item_len == item_len(there, i)) continue;
    differences.compare(fmt::format("{} item_len of buffer {}", name, i), here.buffers[i].item_len,
                        item_len(there, i));
    break;  // the others say the same
  }
  if (!here.layer_ids.empty() && !there.layer_ids.empty() && here.layer_ids != there.layer_ids)
    differences.compare(fmt::format("{} layer ids", name),
                        fmt::format("{}", fmt::join(here.layer_ids, ",")),
                        fmt::format("{}", fmt::join(there.layer_ids, ",")));
}

}  // namespace

std::uint64_t item_len(const wire::KvComponent& component, std::size_t buffer) {
  return component.item_len[component.item_len.size() == 1 ? 0 : buffer];
}

std::uint64_t page_bytes(const KvComponent& component) {
  std::uint64_t sum = 0;
  for (const KvBuffer& buffer : component.buffers) sum += buffer.item_len;
  return sum;
}

bool counts_may_differ(KvPool pool) {
  return pool == KvPool::kSwa || pool == KvPool::kDsa || pool == KvPool::kMinimaxIndexK ||
         pool == KvPool::kBlockScale || pool == KvPool::kBlockScaleSwa;
}

Status check_layout(const KvLayout& layout) {
  if (layout.components.empty() || layout.components.size() > wire::kMaxKvComponents)
    return bad(
        fmt::format("{} components (1 to {})", layout.components.size(), wire::kMaxKvComponents));
  if (layout.page_tokens == 0) return bad("page_tokens is 0");
  if (layout.element_order.size() > wire::kMaxKvElementOrderBytes)
    return bad(fmt::format("element_order \"{}\"", layout.element_order));
  const auto count = [&](KvPool pool) {
    return std::ranges::count(layout.components, pool, &KvComponent::pool);
  };
  if (count(KvPool::kKv) != 1)
    return bad(fmt::format("{} components of kind kv (exactly 1)", count(KvPool::kKv)));
  if (count(KvPool::kAux) > 1)
    return bad(fmt::format("{} components of kind aux (at most 1)", count(KvPool::kAux)));
  const KvRank& rank = layout.rank;
  for (const auto& [name, at, size] :
       {std::tuple{"tp", rank.tp_rank, rank.tp_size}, std::tuple{"pp", rank.pp_rank, rank.pp_size},
        std::tuple{"dp", rank.dp_rank, rank.dp_size}, std::tuple{"cp", rank.cp_rank, rank.cp_size}})
    if (at >= size) return bad(fmt::format("{}_rank {} of {}", name, at, size));
  for (const KvComponent& component : layout.components)
    if (Status status = check_component(component); !status.is_ok()) return status;
  return {};
}

wire::KvLayout describe(const KvLayout& layout, std::span<const std::vector<BufferPlace>> places) {
  const KvRank& rank = layout.rank;
  wire::KvLayout out{.page_tokens = layout.page_tokens,
                     .kv_heads = layout.kv_heads,
                     .head_dim = layout.head_dim,
                     .element_order = layout.element_order,
                     .tp_rank = rank.tp_rank,
                     .tp_size = rank.tp_size,
                     .pp_rank = rank.pp_rank,
                     .pp_size = rank.pp_size,
                     .dp_rank = rank.dp_rank,
                     .dp_size = rank.dp_size,
                     .cp_rank = rank.cp_rank,
                     .cp_size = rank.cp_size};
  for (std::size_t c = 0; c < layout.components.size(); ++c) {
    const KvComponent& from = layout.components[c];
    wire::KvComponent to{.kind = static_cast<std::uint32_t>(from.pool),
                         .items = from.items,
                         .layer_ids = from.layer_ids,
                         .dtype = from.dtype};
    for (const BufferPlace& place : places[c]) {
      to.regions.push_back(place.region);
      to.base_offset.push_back(place.offset);
    }
    for (const KvBuffer& buffer : from.buffers) to.item_len.push_back(buffer.item_len);
    if (std::ranges::all_of(to.item_len, [&](auto length) { return length == to.item_len[0]; }))
      to.item_len.resize(1);
    if (std::ranges::all_of(to.base_offset, [](auto offset) { return offset == 0; }))
      to.base_offset.clear();
    out.components.push_back(std::move(to));
  }
  return out;
}

Status check_remote(const wire::KvLayout& layout) {
  for (const wire::KvComponent& component : layout.components) {
    for (std::size_t i = 0; i < component.regions.size(); ++i) {
      const std::uint64_t offset = component.base_offset.empty() ? 0 : component.base_offset[i];
      if (component.items == 0 || !pool_bytes(component.items, item_len(component, i), offset))
        return {Code::kProtocolError, Origin::kPeer,
                fmt::format("layout: {} buffer {} has {} items of {} bytes from offset {}",
                            kv_pool_name(static_cast<KvPool>(component.kind)), i, component.items,
                            item_len(component, i), offset)};
    }
  }
  return {};
}

Status check_mappable(const KvLayout& here, const wire::KvLayout& there) {
  Differences differences;
  differences.compare("page_tokens", here.page_tokens, there.page_tokens);
  differences.compare("kv_heads", here.kv_heads, there.kv_heads);
  differences.compare("head_dim", here.head_dim, there.head_dim);
  differences.compare("element_order", here.element_order, there.element_order);
  differences.compare("tp_size", here.rank.tp_size, there.tp_size);
  differences.compare("tp_rank", here.rank.tp_rank, there.tp_rank);
  differences.compare("pp_size", here.rank.pp_size, there.pp_size);
  differences.compare("pp_rank", here.rank.pp_rank, there.pp_rank);
  differences.compare("cp_size", here.rank.cp_size, there.cp_size);
  differences.compare("cp_rank", here.rank.cp_rank, there.cp_rank);
  differences.compare("components", here.components.size(), there.components.size());
  const std::size_t components = std::min(here.components.size(), there.components.size());
  for (std::size_t c = 0; c < components; ++c)
    compare_components(here.components[c], there.components[c], differences);
  return differences.status();
}

std::uint32_t kv_component(const KvLayout& layout) {
  const auto at = std::ranges::find(layout.components, KvPool::kKv, &KvComponent::pool);
  return static_cast<std::uint32_t>(at - layout.components.begin());
}

std::optional<std::uint32_t> aux_component(const KvLayout& layout) {
  const auto at = std::ranges::find(layout.components, KvPool::kAux, &KvComponent::pool);
  if (at == layout.components.end()) return std::nullopt;
  return static_cast<std::uint32_t>(at - layout.components.begin());
}

std::vector<std::uint32_t> state_components(const KvLayout& layout) {
  std::vector<std::uint32_t> out;
  for (std::uint32_t c = 0; c < layout.components.size(); ++c)
    if (layout.components[c].pool > KvPool::kAux) out.push_back(c);
  return out;
}

namespace {

Status check_indices(const KvComponent& component, std::span<const std::uint32_t> pages,
                     bool distinct) {
  const std::string_view name = kv_pool_name(component.pool);
  for (const std::uint32_t page : pages)
    if (page >= component.items)
      return {Code::kOutOfRange, Origin::kCaller,
              fmt::format("{} page {}: the pool has {} pages", name, page, component.items)};
  if (!distinct || pages.size() < 2) return {};
  std::vector<std::uint32_t> sorted(pages.begin(), pages.end());
  std::ranges::sort(sorted);
  const auto twice = std::ranges::adjacent_find(sorted);
  if (twice == sorted.end()) return {};
  return {Code::kInvalidArgument, Origin::kCaller,
          fmt::format("{} page {} is given twice", name, *twice)};
}

}  // namespace

Result<std::vector<wire::KvPages>> gather_pages(const KvLayout& layout,
                                                std::span<const std::uint32_t> pages,
                                                std::optional<std::uint32_t> aux_index,
                                                const KvStateIndices& states, bool distinct) {
  std::vector<wire::KvPages> out;
  std::size_t total = 0;
  const auto add = [&](std::uint32_t component, std::span<const std::uint32_t> indices) -> Status {
    if (indices.empty()) return {};
    total += indices.size();
    if (total > config::kMaxPagesPerRoom)
      return {Code::kInvalidArgument, Origin::kCaller,
              fmt::format("{} pages: a room has at most {}", total, config::kMaxPagesPerRoom)};
    if (Status status = check_indices(layout.components[component], indices, distinct);
        !status.is_ok())
      return status;
    out.push_back({.component = component, .pages = {indices.begin(), indices.end()}});
    return {};
  };
  if (Status status = add(kv_component(layout), pages); !status.is_ok())
    return std::unexpected(std::move(status));
  if (aux_index) {
    const auto aux = aux_component(layout);
    if (!aux) return fail(Code::kInvalidArgument, Origin::kCaller, "aux index, but no aux pool");
    const std::uint32_t row = *aux_index;
    if (Status status = add(*aux, {&row, 1}); !status.is_ok())
      return std::unexpected(std::move(status));
  }
  const std::vector<std::uint32_t> pools = state_components(layout);
  if (states.size() > pools.size())
    return fail(
        Code::kInvalidArgument, Origin::kCaller,
        fmt::format("indices for {} state pools: the layout has {}", states.size(), pools.size()));
  for (std::size_t i = 0; i < states.size(); ++i)
    if (Status status = add(pools[i], states[i]); !status.is_ok())
      return std::unexpected(std::move(status));
  return out;
}

}  // namespace kvmend::kv
