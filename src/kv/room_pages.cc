// Page indices of one call, checked and sorted by component.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/config.h"
#include "kv/layout.h"
#include "kv/page_runs.h"

namespace kvmend::kv {
namespace {

Status check_indices(const KvLayout& layout, const KvComponent& component,
                     std::span<const std::uint32_t> pages, bool distinct) {
  const std::string_view name = kv_pool_name(component.pool);
  // Only a source's pages are dealt out among ranks.
  const PageShare share =
      distinct ? PageShare{} : page_share(layout.share, layout.rank, component.pool);
  const std::uint64_t end = component.items * share.logical_per_local();
  for (const std::uint32_t page : pages)
    if (page >= end)
      return {Code::kOutOfRange, Origin::kCaller,
              fmt::format("{} page {}: the pool has {} pages", name, page, end)};
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
                                                const KvStateIndices& states, bool distinct,
                                                std::span<const std::uint32_t> device_pages) {
  std::vector<wire::KvPages> out;
  std::size_t total = 0;
  const auto add = [&](std::uint32_t component, std::span<const std::uint32_t> indices) -> Status {
    if (indices.empty()) return {};
    total += indices.size();
    if (total > config::kMaxPagesPerRoom)
      return {Code::kInvalidArgument, Origin::kCaller,
              fmt::format("{} pages: a room has at most {}", total, config::kMaxPagesPerRoom)};
    if (Status status = check_indices(layout, layout.components[component], indices, distinct);
        !status.is_ok())
      return status;
    out.push_back({.component = component, .pages = {indices.begin(), indices.end()}});
    return {};
  };
  if (Status status = add(kv_component(layout), pages); !status.is_ok())
    return std::unexpected(std::move(status));
  if (!device_pages.empty()) {
    const auto device = component_of(layout, KvPool::kKvDevice);
    if (!device)
      return fail(Code::kInvalidArgument, Origin::kCaller, "device pages, but no kv_device pool");
    if (Status status = add(*device, device_pages); !status.is_ok())
      return std::unexpected(std::move(status));
  }
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
