#include "kv_layout.h"

#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

#include "errors.h"
#include "kvmend/kv_ranks.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kvmend::python {
namespace {

template <class T>
std::string wanted() {
  if constexpr (std::is_same_v<T, bool>) {
    return "True or False";
  } else if constexpr (std::is_integral_v<T>) {
    return fmt::format("an int from {} to {}", std::numeric_limits<T>::min(),
                       std::numeric_limits<T>::max());
  } else if constexpr (std::is_same_v<T, std::string>) {
    return "a str of valid Unicode";
  } else {
    return "a sequence of ints that fit";
  }
}

template <class T>
T get(nb::handle from, const char* name) {
  constexpr std::size_t kMaxShown = 200;
  const nb::object value = from.attr(name);
  T field{};
  // bool counts as an int in Python; as a size it is a mistake.
  const bool strange = nb::isinstance<nb::bool_>(value) && !std::is_same_v<T, bool>;
  if (!strange && nb::try_cast<T>(value, field)) return field;
  throw StatusError(
      {Code::kInvalidArgument, Origin::kCaller,
       fmt::format("{}.{}={} must be {}", nb::str(from.type().attr("__name__")).c_str(), name,
                   std::string_view(nb::repr(value).c_str()).substr(0, kMaxShown), wanted<T>())});
}

KvShape shape_from(nb::handle from) {
  return {.rows = get<std::uint32_t>(from, "rows"),
          .columns = get<std::uint32_t>(from, "columns"),
          .total_columns = get<std::uint32_t>(from, "total_columns"),
          .columns_first = get<bool>(from, "columns_first"),
          .groups = get<std::vector<std::uint32_t>>(from, "groups")};
}

KvField field_from(nb::handle from) {
  return {.name = get<std::string>(from, "name"),
          .buffer = get<std::uint32_t>(from, "buffer"),
          .offset = get<std::uint64_t>(from, "offset"),
          .bytes = get<std::uint64_t>(from, "bytes"),
          .dtype = get<std::string>(from, "dtype"),
          .required = get<bool>(from, "required")};
}

KvComponent component_from(nb::handle from) {
  KvComponent component;
  component.pool = static_cast<KvPool>(get<std::uint32_t>(from, "pool"));
  component.dtype = get<std::string>(from, "dtype");
  component.items = get<std::uint64_t>(from, "items");
  using Buffer = std::tuple<std::uint64_t, std::uint64_t, std::uint32_t, bool>;
  for (const auto& [address, item_len, shape, optional] :
       get<std::vector<Buffer>>(from, "buffer_list"))
    component.buffers.push_back({reinterpret_cast<void*>(address), item_len, shape, optional});
  component.layer_ids = get<std::vector<std::uint32_t>>(from, "layer_ids");
  for (const nb::handle shape : from.attr("shapes")) component.shapes.push_back(shape_from(shape));
  for (const nb::handle field : from.attr("field_list"))
    component.fields.push_back(field_from(field));
  component.fields_version = get<std::uint32_t>(from, "fields_version");
  return component;
}

}  // namespace

KvRank rank_from(nb::handle from) {
  return {.tp_rank = get<std::uint32_t>(from, "tp_rank"),
          .tp_size = get<std::uint32_t>(from, "tp_size"),
          .pp_rank = get<std::uint32_t>(from, "pp_rank"),
          .pp_size = get<std::uint32_t>(from, "pp_size"),
          .dp_rank = get<std::uint32_t>(from, "dp_rank"),
          .dp_size = get<std::uint32_t>(from, "dp_size"),
          .cp_rank = get<std::uint32_t>(from, "cp_rank"),
          .cp_size = get<std::uint32_t>(from, "cp_size"),
          .dcp_rank = get<std::uint32_t>(from, "dcp_rank"),
          .dcp_size = get<std::uint32_t>(from, "dcp_size")};
}

KvLayout layout_from(nb::handle from) {
  KvLayout layout;
  layout.page_tokens = get<std::uint32_t>(from, "page_tokens");
  layout.kv_heads = get<std::uint32_t>(from, "kv_heads");
  layout.head_dim = get<std::uint32_t>(from, "head_dim");
  layout.element_order = get<std::string>(from, "element_order");
  layout.rank = rank_from(from.attr("rank"));
  layout.total_kv_heads = get<std::uint32_t>(from, "total_kv_heads");
  layout.share = static_cast<KvShare>(get<std::uint32_t>(from, "share"));
  for (const nb::handle component : from.attr("components"))
    layout.components.push_back(component_from(component));
  return layout;
}

void bind_kv_ranks(nb::module_& module) {
  module.def(
      "map_kv_ranks",
      [](std::uint32_t tp_size, std::uint32_t pp_size, std::uint32_t cp_size, std::uint32_t share,
         std::uint32_t total_kv_heads, bool divided_states, nb::handle decode) {
        const KvRankMap map = unwrap(map_kv_ranks({.tp_size = tp_size,
                                                   .pp_size = pp_size,
                                                   .cp_size = cp_size,
                                                   .share = static_cast<KvShare>(share),
                                                   .total_kv_heads = total_kv_heads,
                                                   .divided_states = divided_states},
                                                  rank_from(decode)));
        using Server = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, bool>;
        std::vector<Server> servers;
        for (const KvServer& one : map.servers)
          servers.emplace_back(one.tp_rank, one.pp_rank, one.cp_rank, one.writes);
        return std::tuple(servers, map.required_responses, map.required_destinations);
      },
      "tp_size"_a, "pp_size"_a, "cp_size"_a, "share"_a, "total_kv_heads"_a, "divided_states"_a,
      "decode"_a);
  module.def(
      "choose_dp_rank",
      [](std::optional<std::uint32_t> given, bool follow_room, std::uint64_t room,
         std::uint32_t dp_size) {
        return choose_dp_rank(given, follow_room, RoomId(room), dp_size);
      },
      "given"_a.none(), "follow_room"_a, "room"_a, "dp_size"_a);
}

}  // namespace kvmend::python
