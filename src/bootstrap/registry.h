// The rules of the bootstrap registry, without I/O and without a clock of its own.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/time.h"
#include "bootstrap/codec.h"
#include "bootstrap/limits.h"
#include "bootstrap/records.h"
#include "bootstrap/store.h"
#include "kvmend/status.h"

namespace kvmend::bootstrap {

/// Who asks. An empty backend is SGLang's stock manager.
struct Asker {
  std::string backend;
  std::string version;
};

struct RegistryStats {
  std::uint64_t registrations = 0;  ///< accepted, repeated ones included
  std::uint64_t replaced = 0;       ///< ranks whose process restarted
  std::uint64_t started_over = 0;   ///< whole instances whose topology changed
  std::uint64_t refused = 0;        ///< registrations
  std::uint64_t expired_ranks = 0;
  std::uint64_t expired_rooms = 0;
  std::uint64_t evicted_rooms = 0;  ///< the table was full
  std::uint64_t ranks = 0;          ///< now
  std::uint64_t rooms = 0;          ///< now
  std::uint64_t epoch = 0;          ///< now
};

/// One prefill instance's ranks, and the dp ranks of rooms.
///
/// Registering is idempotent: the count of ranks is that of the table, never of the requests. A new
/// incarnation takes over its predecessor's place, and the predecessor can't take it back (a late
/// retry of a dead process loses). A restarted rank whose topology differs ends the whole old
/// instance. One thread at a time.
class Registry {
 public:
  explicit Registry(Store& store, Duration room_lifetime = limits::kRoomLifetime)
      : store_(store), room_lifetime_(room_lifetime) {}

  /// Errors: `kInvalidArgument` (SGLang's two consistency rules), `kIncompatible` (another manager
  /// than the ranks already here), `kUnavailable` (another topology than the ranks already here;
  /// they may be about to leave), `kPeerRestarted` (a newer process has that place).
  Status register_rank(const Registration& registration, Time now);

  /// Errors: `kUnavailable` (not all ranks are here yet), `kIncompatible` (the asker's manager).
  [[nodiscard]] Result<TopologyAnswer> topology(const Asker& asker) const;
  /// Also `kNotFound`.
  [[nodiscard]] Result<RankAnswer> rank(const RankKey& key, const Asker& asker) const;

  void register_room(const RoomRegistration& room, Time now);
  /// Unknown and expired rooms are left out.
  [[nodiscard]] RoomRanks rooms(std::span<const RoomId> rooms, Time now) const;

  /// Forgets expired ranks and rooms; an instance without ranks is forgotten with them.
  void expire(Time now);
  [[nodiscard]] RegistryStats stats() const;

 private:
  [[nodiscard]] Status check(const Registration& registration,
                             const std::optional<StoredRank>& current, bool restarted);
  [[nodiscard]] Status check_complete() const;

  Store& store_;
  Duration room_lifetime_;
  RegistryStats counts_;
};

}  // namespace kvmend::bootstrap
