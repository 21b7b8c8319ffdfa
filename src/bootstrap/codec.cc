#include "bootstrap/codec.h"

#include <fmt/format.h>

#include <charconv>

#include "base/try.h"
#include "bootstrap/json.h"
#include "bootstrap/limits.h"

namespace kvmend::bootstrap {
namespace {

constexpr std::int64_t kMaxSize = limits::kMaxRanks;
constexpr std::int64_t kMaxPageTokens = 1 << 20;
constexpr std::int64_t kMaxPort = 65'535;
constexpr std::int64_t kMaxRoom = INT64_MAX;
constexpr const char* kFollowRoom = "follow_bootstrap_room";

std::unexpected<Status> bad(std::string why) {
  return fail(Code::kInvalidArgument, Origin::kCaller, std::move(why));
}

Json or_null(const std::optional<std::string>& value) {
  return value ? Json(*value) : Json();
}

std::string hex_text(std::uint64_t value) {
  return fmt::format("{:016x}", value);
}

// A request's own text must not make dump() throw: whatever isn't UTF-8 is replaced.
std::string to_text(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void strip_brackets(std::string& host) {
  if (host.size() > 2 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
}

// What the registration and the topology answer have in common.
void read_layout(ObjectReader& reader, Topology& topology) {
  topology.page_size = reader.integer("page_size", 1, kMaxPageTokens);
  topology.kv_cache_dtype = reader.optional_text("kv_cache_dtype");
  topology.kv_layout = reader.optional_text("kv_layout");
  topology.spec_layout = reader.any("dsv41_spec_layout", limits::kMaxSpecBytes);
  topology.decode_allocation_policy =
      reader.optional_text("decode_allocation_policy").value_or("early");
  topology.enable_dsa_cache_layer_split = reader.boolean("enable_dsa_cache_layer_split", false);
  topology.enable_kv_cache_sharding = reader.boolean("enable_kv_cache_sharding", false);
  topology.prefill_http_port = reader.optional_integer("prefill_http_port", 0, kMaxPort);
  topology.backend = reader.optional_text("backend").value_or("");
  topology.kvmend_version = reader.optional_text("kvmend_version").value_or("");
}

// Python's dict order isn't kept: members are written in alphabetical order.
Json layout_json(const Topology& topology) {
  Json json{{"page_size", topology.page_size},
            {"kv_cache_dtype", or_null(topology.kv_cache_dtype)},
            {"decode_allocation_policy", topology.decode_allocation_policy},
            {"enable_dsa_cache_layer_split", topology.enable_dsa_cache_layer_split},
            {"enable_kv_cache_sharding", topology.enable_kv_cache_sharding},
            {"prefill_http_port",
             topology.prefill_http_port ? Json(*topology.prefill_http_port) : Json()}};
  if (topology.kv_layout) json["kv_layout"] = *topology.kv_layout;
  if (!topology.spec_layout.empty())
    json["dsv41_spec_layout"] = Json::parse(topology.spec_layout, nullptr, false);
  return json;
}

Status check_ranks(const Topology& topology, const RankKey& key) {
  struct Row {
    const char* name;
    std::int64_t rank;
    std::int64_t size;
  };
  for (const Row& row :
       {Row{"attn_tp", key.tp, topology.attn_tp_size},
        Row{"attn_cp", key.cp, topology.attn_cp_size}, Row{"dp", key.dp, topology.dp_size},
        Row{"pp", key.pp, topology.pp_size}}) {
    if (row.rank >= row.size) {
      return {
          Code::kInvalidArgument, Origin::kCaller,
          fmt::format("{}_rank {} isn't below {}_size {}", row.name, row.rank, row.name, row.size)};
    }
  }
  // In steps, so that the product can't overflow.
  std::int64_t ranks = topology.attn_tp_size;
  for (const std::int64_t size : {topology.attn_cp_size, topology.dp_size, topology.pp_size}) {
    ranks *= size;
    if (ranks > kMaxSize) {
      return {Code::kInvalidArgument, Origin::kCaller,
              fmt::format("the sizes multiply to more than {} ranks", kMaxSize)};
    }
  }
  return Status::ok();
}

}  // namespace

std::string RankKey::to_string() const {
  return fmt::format("dp_rank={} cp_rank={} tp_rank={} pp_rank={}", dp, cp, tp, pp);
}

Result<Registration> parse_registration(std::string_view body) {
  KVM_ASSIGN_OR_RETURN(const Json json, parse_object(body));
  ObjectReader reader(json);
  Registration out;
  Topology& topology = out.topology;
  topology.attn_tp_size = reader.integer("attn_tp_size", 1, kMaxSize);
  out.key.tp = reader.integer("attn_tp_rank", 0, kMaxSize - 1);
  topology.attn_cp_size = reader.integer("attn_cp_size", 1, kMaxSize);
  out.key.cp = reader.integer("attn_cp_rank", 0, kMaxSize - 1);
  topology.pp_size = reader.integer("pp_size", 1, kMaxSize);
  out.key.pp = reader.integer("pp_rank", 0, kMaxSize - 1);
  const auto attn_dp_size = reader.integer("attn_dp_size", 1, kMaxSize);
  const auto attn_dp_rank = reader.integer("attn_dp_rank", 0, kMaxSize - 1);
  const auto system_dp_size = reader.integer("system_dp_size", 1, kMaxSize);
  const auto system_dp_rank = reader.integer("system_dp_rank", 0, kMaxSize - 1);
  topology.dp_size = system_dp_size == 1 ? attn_dp_size : system_dp_size;
  out.key.dp = system_dp_size == 1 ? attn_dp_rank : system_dp_rank;
  topology.follow_bootstrap_room =
      reader.optional_text("load_balance_method").value_or(kFollowRoom) == kFollowRoom;
  read_layout(reader, topology);
  out.rank.rank_ip = reader.text("rank_ip");
  strip_brackets(out.rank.rank_ip);
  out.rank.rank_port = static_cast<std::uint16_t>(reader.integer("rank_port", 1, kMaxPort));
  out.rank.session_id = reader.optional_text("session_id").value_or("");
  out.rank.incarnation = Incarnation(reader.hex("incarnation"));
  out.rank.lease = std::chrono::seconds(
      reader.optional_integer("lease_seconds", 0, limits::kMaxLease.count()).value_or(0));
  KVM_RETURN_IF_ERROR(reader.status());
  KVM_RETURN_IF_ERROR(check_ranks(topology, out.key));
  return out;
}

std::string encode_registration(const Registration& registration) {
  const Topology& topology = registration.topology;
  const RankRecord& rank = registration.rank;
  Json json = layout_json(topology);
  json.update(
      {{"attn_tp_size", topology.attn_tp_size},
       {"attn_tp_rank", registration.key.tp},
       {"attn_cp_size", topology.attn_cp_size},
       {"attn_cp_rank", registration.key.cp},
       {"attn_dp_size", topology.dp_size},
       {"attn_dp_rank", registration.key.dp},
       {"system_dp_size", 1},
       {"system_dp_rank", 0},
       {"pp_size", topology.pp_size},
       {"pp_rank", registration.key.pp},
       {"rank_ip", rank.rank_ip},
       {"rank_port", rank.rank_port},
       {"load_balance_method", topology.follow_bootstrap_room ? kFollowRoom : "round_robin"}});
  if (!topology.backend.empty()) json["backend"] = topology.backend;
  if (!topology.kvmend_version.empty()) json["kvmend_version"] = topology.kvmend_version;
  if (!rank.session_id.empty()) json["session_id"] = rank.session_id;
  if (rank.incarnation.is_set()) json["incarnation"] = hex_text(rank.incarnation.value);
  if (rank.lease > Duration::zero())
    json["lease_seconds"] = std::chrono::ceil<std::chrono::seconds>(rank.lease).count();
  return to_text(json);
}

std::string encode_topology(const TopologyAnswer& answer, bool extended) {
  const Topology& topology = answer.topology;
  Json json = layout_json(topology);
  json.update({{"attn_tp_size", topology.attn_tp_size},
               {"attn_cp_size", topology.attn_cp_size},
               {"dp_size", topology.dp_size},
               {"pp_size", topology.pp_size},
               {"follow_bootstrap_room", topology.follow_bootstrap_room},
               // Decode's own, filled in by it: the stock registry sends them as null.
               {"target_tp_rank", nullptr},
               {"target_tp_ranks", nullptr},
               {"target_cp_ranks", nullptr},
               {"target_pp_ranks", nullptr},
               {"required_dst_info_num", nullptr},
               {"required_prefill_response_num", nullptr}});
  if (extended) {
    json["backend"] = topology.backend;
    json["kvmend_version"] = topology.kvmend_version;
    json["epoch"] = answer.epoch;
  }
  return to_text(json);
}

Result<TopologyAnswer> parse_topology(std::string_view body) {
  KVM_ASSIGN_OR_RETURN(const Json json, parse_object(body));
  ObjectReader reader(json);
  TopologyAnswer out;
  out.topology.attn_tp_size = reader.integer("attn_tp_size", 1, kMaxSize);
  out.topology.attn_cp_size = reader.integer("attn_cp_size", 1, kMaxSize);
  out.topology.dp_size = reader.integer("dp_size", 1, kMaxSize);
  out.topology.pp_size = reader.integer("pp_size", 1, kMaxSize);
  out.topology.follow_bootstrap_room = reader.boolean("follow_bootstrap_room", true);
  read_layout(reader, out.topology);
  out.epoch =
      static_cast<std::uint64_t>(reader.optional_integer("epoch", 0, INT64_MAX).value_or(0));
  KVM_RETURN_IF_ERROR(reader.status());
  KVM_RETURN_IF_ERROR(check_ranks(out.topology, {}));
  return out;
}

std::string encode_rank(const RankAnswer& answer, bool extended) {
  Json json{{"rank_ip", answer.rank.rank_ip}, {"rank_port", answer.rank.rank_port}};
  if (extended) {
    json["session_id"] = answer.rank.session_id;
    json["incarnation"] = hex_text(answer.rank.incarnation.value);
    json["epoch"] = answer.epoch;
  }
  return to_text(json);
}

Result<RankAnswer> parse_rank(std::string_view body) {
  KVM_ASSIGN_OR_RETURN(const Json json, parse_object(body));
  ObjectReader reader(json);
  RankAnswer out;
  out.rank.rank_ip = reader.text("rank_ip");
  strip_brackets(out.rank.rank_ip);
  out.rank.rank_port = static_cast<std::uint16_t>(reader.integer("rank_port", 1, kMaxPort));
  out.rank.session_id = reader.optional_text("session_id").value_or("");
  out.rank.incarnation = Incarnation(reader.hex("incarnation"));
  out.epoch =
      static_cast<std::uint64_t>(reader.optional_integer("epoch", 0, INT64_MAX).value_or(0));
  KVM_RETURN_IF_ERROR(reader.status());
  return out;
}

Result<RoomRegistration> parse_room(std::string_view body) {
  KVM_ASSIGN_OR_RETURN(const Json json, parse_object(body));
  ObjectReader reader(json);
  RoomRegistration out;
  out.room = RoomId(static_cast<std::uint64_t>(reader.integer("bootstrap_room", 0, kMaxRoom)));
  out.dp_rank = reader.integer("dp_rank", 0, kMaxSize - 1);
  KVM_RETURN_IF_ERROR(reader.status());
  return out;
}

std::string encode_room(const RoomRegistration& room) {
  return to_text({{"bootstrap_room", room.room.value}, {"dp_rank", room.dp_rank}});
}

Result<std::vector<RoomId>> parse_room_query(std::string_view body) {
  KVM_ASSIGN_OR_RETURN(const Json json, parse_object(body));
  const auto rooms = json.find("bootstrap_rooms");
  if (rooms == json.end() || !rooms->is_array())
    return bad("'bootstrap_rooms' is missing or isn't a list");
  if (rooms->size() > limits::kMaxRoomsPerQuery) {
    return bad(fmt::format("'bootstrap_rooms' has {} entries, allowed are {}", rooms->size(),
                           limits::kMaxRoomsPerQuery));
  }
  std::vector<RoomId> out;
  out.reserve(rooms->size());
  for (const Json& room : *rooms) {
    const auto value = to_integer(room);
    if (!value || *value < 0) return bad("'bootstrap_rooms' has an entry that isn't a room number");
    out.emplace_back(static_cast<std::uint64_t>(*value));
  }
  return out;
}

std::string encode_room_query(const std::vector<RoomId>& rooms) {
  Json list = Json::array();
  for (const RoomId room : rooms) list.push_back(room.value);
  return to_text({{"bootstrap_rooms", std::move(list)}});
}

std::string encode_room_ranks(const RoomRanks& ranks) {
  Json json = Json::object();
  for (const auto& [room, rank] : ranks) json[std::to_string(room.value)] = rank;
  return to_text(json);
}

Result<RoomRanks> parse_room_ranks(std::string_view body) {
  KVM_ASSIGN_OR_RETURN(const Json json, parse_object(body));
  RoomRanks out;
  for (const auto& [name, rank] : json.items()) {
    std::uint64_t room = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), room);
    const auto value = to_integer(rank);
    if (error != std::errc{} || end != name.data() + name.size() || !value)
      return bad("an answer about rooms isn't of the form {\"room\": rank}");
    out[RoomId(room)] = *value;
  }
  return out;
}

}  // namespace kvmend::bootstrap
