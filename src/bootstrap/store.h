// Where the registry keeps what it knows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/time.h"
#include "bootstrap/records.h"

namespace kvmend::bootstrap {

/// A stored rank, with the moment its lease ends (`kForever`: none).
struct StoredRank {
  RankRecord record;
  Time expires = kForever;
};

/// The registry's tables; all rules are the registry's. Bounded by `limits`, never throws, never
/// blocks: a shared store (etcd) keeps a local copy up to date. One thread at a time.
class Store {
 public:
  virtual ~Store() = default;

  [[nodiscard]] virtual std::optional<Topology> topology() const = 0;
  virtual void set_topology(std::optional<Topology> topology) = 0;

  [[nodiscard]] virtual std::optional<StoredRank> rank(const RankKey& key) const = 0;
  virtual void put_rank(const RankKey& key, StoredRank rank) = 0;
  [[nodiscard]] virtual std::size_t rank_count() const = 0;
  /// Remembers the incarnations of all ranks as retired, and forgets the ranks.
  virtual void retire_all_ranks() = 0;

  /// Rises with every change of the rank-to-address mapping.
  [[nodiscard]] virtual std::uint64_t epoch() const = 0;
  virtual void next_epoch() = 0;

  /// Incarnations whose place another process has taken; the oldest are forgotten.
  virtual void retire(Incarnation incarnation) = 0;
  [[nodiscard]] virtual bool is_retired(Incarnation incarnation) const = 0;

  /// Stores a room's dp rank; true when the oldest room had to go for it.
  virtual bool put_room(RoomId room, std::int64_t dp_rank, Time expires) = 0;
  [[nodiscard]] virtual std::optional<std::int64_t> room(RoomId room, Time now) const = 0;
  [[nodiscard]] virtual std::size_t room_count() const = 0;

  struct Expired {
    std::size_t ranks = 0;
    std::size_t rooms = 0;
  };
  /// Forgets what has expired by `now`.
  virtual Expired expire(Time now) = 0;
};

}  // namespace kvmend::bootstrap
