#include "bootstrap/memory_store.h"

#include <utility>

#include "base/check.h"

namespace kvmend::bootstrap {

std::optional<StoredRank> MemoryStore::rank(const RankKey& key) const {
  const auto it = ranks_.find(key);
  return it == ranks_.end() ? std::nullopt : std::optional(it->second);
}

void MemoryStore::put_rank(const RankKey& key, StoredRank rank) {
  KVM_CHECK(ranks_.size() < limits::kMaxRanks || ranks_.contains(key));
  ranks_.insert_or_assign(key, std::move(rank));
}

void MemoryStore::retire_all_ranks() {
  for (const auto& [key, rank] : ranks_) retire(rank.record.incarnation);
  ranks_.clear();
}

void MemoryStore::retire(Incarnation incarnation) {
  if (!incarnation.is_set() || !retired_.insert(incarnation).second) return;
  retired_order_.push_back(incarnation);
  if (retired_order_.size() <= limits::kMaxRetired) return;
  retired_.erase(retired_order_.front());
  retired_order_.pop_front();
}

bool MemoryStore::is_retired(Incarnation incarnation) const {
  return incarnation.is_set() && retired_.contains(incarnation);
}

bool MemoryStore::put_room(RoomId room, std::int64_t dp_rank, Time expires) {
  if (const auto it = rooms_.find(room); it != rooms_.end()) {
    it->second = {.dp_rank = dp_rank, .expires = expires};
    return false;
  }
  const bool full = rooms_.size() >= max_rooms_;
  if (full) {
    rooms_.erase(due_.front().room);
    due_.pop_front();
  }
  rooms_.emplace(room, Room{.dp_rank = dp_rank, .expires = expires});
  due_.push_back({.when = expires, .room = room});
  return full;
}

std::optional<std::int64_t> MemoryStore::room(RoomId room, Time now) const {
  const auto it = rooms_.find(room);
  if (it == rooms_.end() || it->second.expires <= now) return std::nullopt;
  return it->second.dp_rank;
}

Store::Expired MemoryStore::expire(Time now) {
  Expired gone;
  while (!due_.empty() && due_.front().when <= now) {
    const Due due = due_.front();
    due_.pop_front();
    const auto it = rooms_.find(due.room);
    if (it->second.expires > now) {  // registered again since
      due_.push_back({.when = it->second.expires, .room = due.room});
      continue;
    }
    rooms_.erase(it);
    ++gone.rooms;
  }
  gone.ranks = std::erase_if(ranks_, [&](const auto& item) { return item.second.expires <= now; });
  return gone;
}

}  // namespace kvmend::bootstrap
