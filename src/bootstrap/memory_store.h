// The default store: tables in this process's memory.
#pragma once

#include <deque>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "bootstrap/limits.h"
#include "bootstrap/store.h"

namespace kvmend::bootstrap {

/// One thread at a time.
class MemoryStore final : public Store {
 public:
  explicit MemoryStore(std::size_t max_rooms = limits::kMaxRooms) : max_rooms_(max_rooms) {}

  [[nodiscard]] std::optional<Topology> topology() const override { return topology_; }
  void set_topology(std::optional<Topology> topology) override { topology_ = std::move(topology); }
  [[nodiscard]] std::optional<StoredRank> rank(const RankKey& key) const override;
  void put_rank(const RankKey& key, StoredRank rank) override;
  [[nodiscard]] std::size_t rank_count() const override { return ranks_.size(); }
  void retire_all_ranks() override;
  [[nodiscard]] std::uint64_t epoch() const override { return epoch_; }
  void next_epoch() override { ++epoch_; }
  void retire(Incarnation incarnation) override;
  [[nodiscard]] bool is_retired(Incarnation incarnation) const override;
  bool put_room(RoomId room, std::int64_t dp_rank, Time expires) override;
  [[nodiscard]] std::optional<std::int64_t> room(RoomId room, Time now) const override;
  [[nodiscard]] std::size_t room_count() const override { return rooms_.size(); }
  Expired expire(Time now) override;

 private:
  struct Room {
    std::int64_t dp_rank = 0;
    Time expires;
  };
  struct Due {
    Time when;
    RoomId room;
  };

  std::size_t max_rooms_;
  std::optional<Topology> topology_;
  std::map<RankKey, StoredRank> ranks_;
  std::uint64_t epoch_ = 1;
  std::unordered_set<Incarnation> retired_;
  std::deque<Incarnation> retired_order_;
  std::unordered_map<RoomId, Room> rooms_;
  /// One entry per room, by the expiry it had when it was put there.
  std::deque<Due> due_;
};

}  // namespace kvmend::bootstrap
