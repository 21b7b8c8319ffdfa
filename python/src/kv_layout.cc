#include "kv_layout.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;

namespace kvmend::python {
namespace {

KvComponent component_from(nb::handle from) {
  using Pairs = std::vector<std::pair<std::uint64_t, std::uint64_t>>;
  KvComponent component;
  component.pool = static_cast<KvPool>(nb::cast<std::uint32_t>(from.attr("pool")));
  component.dtype = nb::cast<std::string>(from.attr("dtype"));
  component.items = nb::cast<std::uint64_t>(from.attr("items"));
  for (const auto& [address, item_len] : nb::cast<Pairs>(from.attr("buffer_list")))
    component.buffers.push_back({reinterpret_cast<void*>(address), item_len});
  component.layer_ids = nb::cast<std::vector<std::uint32_t>>(from.attr("layer_ids"));
  return component;
}

KvRank rank_from(nb::handle from) {
  KvRank rank;
  rank.tp_rank = nb::cast<std::uint32_t>(from.attr("tp_rank"));
  rank.tp_size = nb::cast<std::uint32_t>(from.attr("tp_size"));
  rank.pp_rank = nb::cast<std::uint32_t>(from.attr("pp_rank"));
  rank.pp_size = nb::cast<std::uint32_t>(from.attr("pp_size"));
  rank.dp_rank = nb::cast<std::uint32_t>(from.attr("dp_rank"));
  rank.dp_size = nb::cast<std::uint32_t>(from.attr("dp_size"));
  rank.cp_rank = nb::cast<std::uint32_t>(from.attr("cp_rank"));
  rank.cp_size = nb::cast<std::uint32_t>(from.attr("cp_size"));
  return rank;
}

}  // namespace

KvLayout layout_from(nb::handle from) {
  KvLayout layout;
  layout.page_tokens = nb::cast<std::uint32_t>(from.attr("page_tokens"));
  layout.kv_heads = nb::cast<std::uint32_t>(from.attr("kv_heads"));
  layout.head_dim = nb::cast<std::uint32_t>(from.attr("head_dim"));
  layout.element_order = nb::cast<std::string>(from.attr("element_order"));
  layout.rank = rank_from(from.attr("rank"));
  for (const nb::handle component : from.attr("components"))
    layout.components.push_back(component_from(component));
  return layout;
}

}  // namespace kvmend::python
