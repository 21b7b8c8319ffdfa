// What the registry knows about a prefill instance. Plain values.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>

#include "base/time.h"
#include "kvmend/ids.h"

namespace kvmend::bootstrap {

/// The shape of a prefill instance, equal for all its ranks; names as SGLang's `/route` uses them.
/// `backend` and `kvmend_version` are kvmend's own.
struct Topology {
  std::int64_t attn_tp_size = 1;
  std::int64_t attn_cp_size = 1;
  std::int64_t dp_size = 1;  ///< of the attention, or of the system where that isn't 1
  std::int64_t pp_size = 1;
  std::int64_t page_size = 1;  ///< tokens
  std::optional<std::string> kv_cache_dtype;
  std::optional<std::string> kv_layout;
  std::string spec_layout;  ///< `dsv41_spec_layout` as JSON text with sorted keys; empty: none
  std::string decode_allocation_policy = "early";
  bool follow_bootstrap_room = true;
  bool enable_dsa_cache_layer_split = false;
  bool enable_kv_cache_sharding = false;
  std::optional<std::int64_t> prefill_http_port;
  std::string backend;         ///< "kvmend"; empty: SGLang's stock manager
  std::string kvmend_version;  ///< empty with a stock manager

  /// How many ranks it has when it is complete.
  [[nodiscard]] std::int64_t expected_ranks() const {
    return attn_tp_size * attn_cp_size * dp_size * pp_size;
  }
  friend bool operator==(const Topology&, const Topology&) = default;
};

struct RankKey {
  std::int64_t dp = 0;
  std::int64_t cp = 0;
  std::int64_t tp = 0;
  std::int64_t pp = 0;
  friend auto operator<=>(const RankKey&, const RankKey&) = default;
  /// "dp_rank=0 cp_rank=0 tp_rank=1 pp_rank=0"
  [[nodiscard]] std::string to_string() const;
};

/// One prefill rank: where its control port is and, for kvmend, which process answers there.
struct RankRecord {
  std::string rank_ip;  ///< without brackets
  std::uint16_t rank_port = 0;
  std::string session_id;   ///< the engine's "host:port"; empty with a stock manager
  Incarnation incarnation;  ///< 0 with a stock manager
  /// How long the entry stays without being registered again; zero: until it is replaced.
  Duration lease{};
  friend bool operator==(const RankRecord&, const RankRecord&) = default;
};

/// The body of `PUT /route`.
struct Registration {
  Topology topology;
  RankKey key;
  RankRecord rank;
  friend bool operator==(const Registration&, const Registration&) = default;
};

/// An answer about a complete instance, with the registry's epoch: it changes whenever the
/// rank-to-address mapping may have.
struct TopologyAnswer {
  Topology topology;
  std::uint64_t epoch = 0;
};
struct RankAnswer {
  RankRecord rank;
  std::uint64_t epoch = 0;
};

/// The body of `POST /register_dp_rank`.
struct RoomRegistration {
  RoomId room;
  std::int64_t dp_rank = 0;
};

}  // namespace kvmend::bootstrap
