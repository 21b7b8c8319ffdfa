#include "bootstrap/registry.h"

#include <fmt/format.h>

#include <utility>

#include "base/try.h"
#include "bootstrap/backend.h"

namespace kvmend::bootstrap {
namespace {

// "attn_tp_size is 2 instead of 4", or empty. What SGLang takes from the first rank without
// comparing (load balancing, HTTP port, layer split) isn't compared here either.
std::string difference(const Topology& have, const Topology& got) {
  const auto number = [](const char* name, std::int64_t a, std::int64_t b) {
    return a == b ? std::string() : fmt::format("{} is {} instead of {}", name, b, a);
  };
  const auto text = [](const char* name, const std::optional<std::string>& a,
                       const std::optional<std::string>& b) {
    return !a || !b || a == b ? std::string() : fmt::format("{} is {} instead of {}", name, *b, *a);
  };
  for (std::string found :
       {number("attn_tp_size", have.attn_tp_size, got.attn_tp_size),
        number("attn_cp_size", have.attn_cp_size, got.attn_cp_size),
        number("dp_size", have.dp_size, got.dp_size), number("pp_size", have.pp_size, got.pp_size),
        number("page_size", have.page_size, got.page_size),
        text("kv_cache_dtype", have.kv_cache_dtype, got.kv_cache_dtype),
        text("kv_layout", have.kv_layout, got.kv_layout)}) {
    if (!found.empty()) return found;
  }
  return {};
}

bool is_other_process(const RankRecord& have, const RankRecord& got) {
  if (have.incarnation.is_set() || got.incarnation.is_set())
    return have.incarnation != got.incarnation;
  return have.rank_ip != got.rank_ip || have.rank_port != got.rank_port;
}

bool differs(const Topology& have, const Topology& got) {
  return !difference(have, got).empty() || have.backend != got.backend ||
         have.spec_layout != got.spec_layout ||
         have.decode_allocation_policy != got.decode_allocation_policy;
}

// The first rank's topology is the instance's; what it left open is taken from later ones.
void complete(Topology& have, const Topology& got) {
  if (!have.kv_cache_dtype) have.kv_cache_dtype = got.kv_cache_dtype;
  if (!have.kv_layout) have.kv_layout = got.kv_layout;
  if (!have.prefill_http_port) have.prefill_http_port = got.prefill_http_port;
}

}  // namespace

Status Registry::check(const Registration& registration, const std::optional<StoredRank>& current,
                       bool restarted) {
  if (store_.is_retired(registration.rank.incarnation)) {
    return {Code::kPeerRestarted, Origin::kPeer,
            fmt::format("rank {} was taken over by another process{}; if both are running, two "
                        "prefill instances share this registry",
                        registration.key.to_string(),
                        current ? fmt::format(" at {}:{}", current->record.rank_ip,
                                              current->record.rank_port)
                                : "")};
  }
  const auto topology = store_.topology();
  if (!topology || restarted || !differs(*topology, registration.topology)) return Status::ok();
  const Topology& got = registration.topology;
  if (const Status same = check_backends(topology->backend, topology->kvmend_version, got.backend,
                                         got.kvmend_version);
      !same.is_ok()) {
    return {Code::kIncompatible, Origin::kPeer,
            fmt::format("the prefill ranks registered here run {}, rank {} runs {}; start all of "
                        "them with the same --disaggregation-transfer-backend",
                        describe_backend(topology->backend, topology->kvmend_version),
                        registration.key.to_string(),
                        describe_backend(got.backend, got.kvmend_version))};
  }
  if (topology->spec_layout != got.spec_layout) {
    return {Code::kInvalidArgument, Origin::kPeer,
            "DeepSeek-V4.1 DSpark PD layout differs across prefill ranks"};
  }
  if (topology->decode_allocation_policy != got.decode_allocation_policy)
    return {Code::kInvalidArgument, Origin::kPeer, "Inconsistent prefill allocation policies"};
  return {
      Code::kUnavailable, Origin::kPeer,
      fmt::format("rank {} doesn't fit the {} registered ranks: its {}",
                  registration.key.to_string(), store_.rank_count(), difference(*topology, got))};
}

Status Registry::register_rank(const Registration& registration, Time now) {
  const auto current = store_.rank(registration.key);
  const bool other = current && is_other_process(current->record, registration.rank);
  // Without incarnations a restart on the same port shows only by its other topology.
  const bool restarted = current && (other || !registration.rank.incarnation.is_set());
  if (Status bad = check(registration, current, restarted); !bad.is_ok()) {
    ++counts_.refused;
    return bad;
  }
  auto topology = store_.topology();
  if (topology && differs(*topology, registration.topology)) {
    store_.retire_all_ranks();
    topology.reset();
    ++counts_.started_over;
  } else if (other) {
    store_.retire(current->record.incarnation);
    ++counts_.replaced;
  }
  if (topology) {
    complete(*topology, registration.topology);
  } else {
    topology = registration.topology;
  }
  store_.set_topology(std::move(topology));
  if (!current || current->record != registration.rank) store_.next_epoch();
  const Duration lease = registration.rank.lease;
  store_.put_rank(registration.key,
                  {.record = registration.rank,
                   .expires = lease > Duration::zero() ? saturating_add(now, lease) : kForever});
  ++counts_.registrations;
  return Status::ok();
}

Status Registry::check_complete() const {
  const auto topology = store_.topology();
  const auto count = store_.rank_count();
  if (topology && count >= static_cast<std::size_t>(topology->expected_ranks()))
    return Status::ok();
  return {Code::kUnavailable, Origin::kPeer,
          fmt::format("Prefill server not fully registered yet ({} workers registered).", count)};
}

Result<TopologyAnswer> Registry::topology(const Asker& asker) const {
  KVM_RETURN_IF_ERROR(check_complete());
  Topology topology = *store_.topology();
  KVM_RETURN_IF_ERROR(
      check_backends(topology.backend, topology.kvmend_version, asker.backend, asker.version));
  return TopologyAnswer{.topology = std::move(topology), .epoch = store_.epoch()};
}

Result<RankAnswer> Registry::rank(const RankKey& key, const Asker& asker) const {
  KVM_ASSIGN_OR_RETURN(const TopologyAnswer whole, topology(asker));
  auto found = store_.rank(key);
  if (!found) {
    return fail(Code::kNotFound, Origin::kCaller,
                fmt::format("Bootstrap info not found for {}", key.to_string()));
  }
  return RankAnswer{.rank = std::move(found->record), .epoch = whole.epoch};
}

void Registry::register_room(const RoomRegistration& room, Time now) {
  if (store_.put_room(room.room, room.dp_rank, saturating_add(now, room_lifetime_)))
    ++counts_.evicted_rooms;
}

RoomRanks Registry::rooms(std::span<const RoomId> rooms, Time now) const {
  RoomRanks out;
  for (const RoomId room : rooms)
    if (const auto rank = store_.room(room, now)) out[room] = *rank;
  return out;
}

void Registry::expire(Time now) {
  const Store::Expired gone = store_.expire(now);
  counts_.expired_rooms += gone.rooms;
  counts_.expired_ranks += gone.ranks;
  if (gone.ranks == 0) return;
  store_.next_epoch();
  if (store_.rank_count() == 0) store_.set_topology(std::nullopt);
}

RegistryStats Registry::stats() const {
  RegistryStats stats = counts_;
  stats.ranks = store_.rank_count();
  stats.rooms = store_.room_count();
  stats.epoch = store_.epoch();
  return stats;
}

}  // namespace kvmend::bootstrap
