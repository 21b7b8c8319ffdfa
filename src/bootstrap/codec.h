// The registry's bodies as JSON, in both directions. Pure functions, safe on bytes from outside.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "bootstrap/records.h"
#include "kvmend/status.h"

namespace kvmend::bootstrap {

// Every parser: errors `kInvalidArgument` (caller), naming the member and what is wrong with it.
// Unknown members are ignored, as SGLang ignores them.

/// `PUT /route`. `load_balance_method`, `attn_dp_*` and `system_dp_*` are folded into the topology
/// and the key as SGLang folds them. Sizes, and ranks against their sizes, are checked here.
[[nodiscard]] Result<Registration> parse_registration(std::string_view body);
[[nodiscard]] std::string encode_registration(const Registration& registration);

/// `GET /route` for the topology. `extended` adds `backend`, `kvmend_version` and `epoch`: only for
/// callers who said they are kvmend, since SGLang's decode refuses members it doesn't know.
[[nodiscard]] std::string encode_topology(const TopologyAnswer& answer, bool extended);
[[nodiscard]] Result<TopologyAnswer> parse_topology(std::string_view body);

/// `GET /route` for one rank; `extended` adds `session_id`, `incarnation` and `epoch`.
[[nodiscard]] std::string encode_rank(const RankAnswer& answer, bool extended);
[[nodiscard]] Result<RankAnswer> parse_rank(std::string_view body);

/// `POST /register_dp_rank`.
[[nodiscard]] Result<RoomRegistration> parse_room(std::string_view body);
[[nodiscard]] std::string encode_room(const RoomRegistration& room);

/// `POST /query_dp_ranks`: the rooms asked for, and the answer (unknown rooms are left out).
using RoomRanks = std::map<RoomId, std::int64_t>;
[[nodiscard]] Result<std::vector<RoomId>> parse_room_query(std::string_view body);
[[nodiscard]] std::string encode_room_query(const std::vector<RoomId>& rooms);
[[nodiscard]] std::string encode_room_ranks(const RoomRanks& ranks);
[[nodiscard]] Result<RoomRanks> parse_room_ranks(std::string_view body);

}  // namespace kvmend::bootstrap
