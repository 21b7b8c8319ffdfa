#include "kv/rank_map.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/try.h"
#include "kv/geometry.h"

namespace kvmend::kv {
namespace {

Status incompatible(std::string detail) {
  return {Code::kIncompatible, Origin::kPeer, std::move(detail)};
}

}  // namespace

std::optional<TensorServers> tensor_servers(std::uint32_t source_size,
                                            std::uint32_t destination_rank,
                                            std::uint32_t destination_size, bool all) {
  if (all) {
    if (source_size != destination_size) return std::nullopt;
    return TensorServers{0, source_size};
  }
  if (destination_size >= source_size) {
    if (destination_size % source_size != 0) return std::nullopt;
    return TensorServers{destination_rank / (destination_size / source_size), 1};
  }
  if (source_size % destination_size != 0) return std::nullopt;
  const std::uint32_t each = source_size / destination_size;
  return TensorServers{destination_rank * each, each};
}

Status check_serves(const KvRank& source, KvShare share, const KvRank& destination) {
  const bool all = shared_among_tensor_ranks(share, source.cp_size);
  const auto servers =
      tensor_servers(source.tp_size, destination.tp_rank, destination.tp_size, all);
  if (!servers)
    return incompatible(
        fmt::format("tp_size {} here, {} there", source.tp_size, destination.tp_size));
  if (source.tp_rank < servers->first || source.tp_rank >= servers->first + servers->count)
    return incompatible(fmt::format("tp_rank {} of {} here, {} of {} there", source.tp_rank,
                                    source.tp_size, destination.tp_rank, destination.tp_size));
  if (destination.pp_size != 1 && source.pp_size != destination.pp_size)
    return incompatible(
        fmt::format("pp_size {} here, {} there", source.pp_size, destination.pp_size));
  if (destination.pp_size != 1 && source.pp_rank != destination.pp_rank)
    return incompatible(
        fmt::format("pp_rank {} here, {} there", source.pp_rank, destination.pp_rank));
  if (destination.cp_size != 1)
    return incompatible(fmt::format("cp_size {} here, {} there (decode's must be 1)",
                                    source.cp_size, destination.cp_size));
  if (source.dcp_size != 1 && source.dcp_size != destination.dcp_size)
    return incompatible(
        fmt::format("dcp_size {} here, {} there", source.dcp_size, destination.dcp_size));
  if (source.dcp_size != 1 && source.dcp_rank != destination.dcp_rank)
    return incompatible(
        fmt::format("dcp_rank {} here, {} there", source.dcp_rank, destination.dcp_rank));
  return {};
}

}  // namespace kvmend::kv

namespace kvmend {

Result<KvRankMap> map_kv_ranks(const KvTopology& prefill, const KvRank& decode) {
  const bool all = kv::shared_among_tensor_ranks(prefill.share, prefill.cp_size);
  const auto tensor = kv::tensor_servers(prefill.tp_size, decode.tp_rank, decode.tp_size, all);
  const KvRank source{.tp_rank = tensor ? tensor->first : 0,
                      .tp_size = prefill.tp_size,
                      .pp_rank = decode.pp_size == prefill.pp_size ? decode.pp_rank : 0,
                      .pp_size = prefill.pp_size,
                      .cp_size = prefill.cp_size};
  KVM_RETURN_IF_ERROR(kv::check_serves(source, prefill.share, decode));
  KvRankMap map;
  const std::uint32_t stages = decode.pp_size == 1 ? prefill.pp_size : 1;
  const std::uint32_t contexts = prefill.share == KvShare::kLeader ? 1 : prefill.cp_size;
  // A head that several of the servers hold is sent by the first of them.
  const std::uint32_t heads = prefill.total_kv_heads;
  const std::uint32_t holders = heads != 0 && heads < prefill.tp_size ? prefill.tp_size / heads : 1;
  for (std::uint32_t cp = 0; cp < contexts; ++cp)
    for (std::uint32_t tp = tensor->first; tp < tensor->first + tensor->count; ++tp)
      for (std::uint32_t pp = source.pp_rank; pp < source.pp_rank + stages; ++pp)
        map.servers.push_back({.tp_rank = tp,
                               .pp_rank = pp,
                               .cp_rank = cp,
                               .writes = all || prefill.divided_states ||
                                         tp == std::max(tp / holders * holders, tensor->first)});
  map.required_responses =
      (heads == 1 && !all && !prefill.divided_states ? 1 : tensor->count) * contexts * stages;
  map.required_destinations = all ? decode.tp_size : std::max(1U, decode.tp_size / prefill.tp_size);
  return map;
}

std::optional<std::uint32_t> choose_dp_rank(std::optional<std::uint32_t> given, bool follow_room,
                                            RoomId room, std::uint32_t dp_size) {
  if (given) return given;
  if (dp_size <= 1) return 0;
  if (follow_room) return static_cast<std::uint32_t>(room.value % dp_size);
  return std::nullopt;
}

}  // namespace kvmend
