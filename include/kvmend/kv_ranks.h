// Which prefill ranks a decode rank talks to, for whoever finds them (the bootstrap registry).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kvmend/ids.h"
#include "kvmend/kv_layout.h"
#include "kvmend/status.h"

namespace kvmend {

/// What decode needs to know of a prefill instance.
struct KvTopology {
  std::uint32_t tp_size = 1;
  std::uint32_t pp_size = 1;
  std::uint32_t cp_size = 1;
  std::uint32_t dp_size = 1;
  KvShare share = KvShare::kLeader;
  /// Of the model; 1 where all tensor ranks hold the same (MLA).
  std::uint32_t total_kv_heads = 0;
  /// Some state pool is divided among tensor ranks: then all of them write, whoever has the heads.
  bool divided_states = false;
};

struct KvServer {
  std::uint32_t tp_rank = 0;
  std::uint32_t pp_rank = 0;
  std::uint32_t cp_rank = 0;
  /// False: holds only copies of what another one sends. It is told of the room all the same, so
  /// that its scheduler sees the room succeed, and confirms 0 bytes.
  bool writes = true;
  friend bool operator==(const KvServer&, const KvServer&) = default;
};

struct KvRankMap {
  std::vector<KvServer> servers;  ///< list these as the receiver's prefill sessions
  /// As SGLang counts them: servers whose word a room needs. (Here all of them confirm.)
  std::uint32_t required_responses = 0;
  std::uint32_t required_destinations = 0;  ///< decode ranks that each of the servers serves
};

/// Errors: kIncompatible, naming both sides' sizes where no mapping exists: one tp size must divide
/// the other; decode's cp size is 1; its pp size 1 or prefill's.
[[nodiscard]] Result<KvRankMap> map_kv_ranks(const KvTopology& prefill, const KvRank& decode);

/// The data-parallel rank of prefill that serves a room: `given`, or room % dp_size where routers
/// follow the room number; nothing: ask the registry.
[[nodiscard]] std::optional<std::uint32_t> choose_dp_rank(std::optional<std::uint32_t> given,
                                                          bool follow_room, RoomId room,
                                                          std::uint32_t dp_size);

}  // namespace kvmend
