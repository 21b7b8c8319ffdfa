// How rooms ended that aren't in the tables any more: so that a late or repeated message is
// answered
// ("already complete", or the reason) and touches nothing. Bounded: the oldest is forgotten.
#pragma once

#include <cstdint>
#include <deque>
#include <memory_resource>
#include <unordered_map>
#include <utility>

#include "base/config.h"
#include "kvmend/ids.h"
#include "kvmend/status.h"

namespace kvmend::kv {

/// One attempt of a room with one decode process.
struct RoomKey {
  RoomId room;
  Incarnation decode;
  std::uint32_t attempt = 0;
  friend bool operator==(const RoomKey&, const RoomKey&) = default;
};

struct RoomKeyHash {
  std::size_t operator()(const RoomKey& key) const noexcept {
    std::uint64_t mix = key.room.value * 0x9E3779B97F4A7C15ULL;
    mix ^= (key.decode.value + key.attempt) * 0xC2B2AE3D27D4EB4FULL;
    return static_cast<std::size_t>(mix ^ (mix >> 29));
  }
};

struct FinishedRoom {
  Status result;           ///< OK: Success
  bool undrained = false;  ///< writes of it that failed may still be under way
};

/// Loop thread.
class FinishedRooms {
 public:
  void add(const RoomKey& key, FinishedRoom room) {
    if (!rooms_.insert_or_assign(key, std::move(room)).second) return;
    order_.push_back(key);
    while (order_.size() > config::kFinishedRoomsRemembered) {
      rooms_.erase(order_.front());
      order_.pop_front();
    }
  }
  [[nodiscard]] FinishedRoom* find(const RoomKey& key) {
    const auto at = rooms_.find(key);
    return at == rooms_.end() ? nullptr : &at->second;
  }
  [[nodiscard]] std::size_t size() const { return rooms_.size(); }

 private:
  // In blocks of their own: small entries that outlive everything around them would keep a page of
  // the heap each from being given back.
  std::pmr::unsynchronized_pool_resource memory_;
  std::pmr::unordered_map<RoomKey, FinishedRoom, RoomKeyHash> rooms_{&memory_};
  std::pmr::deque<RoomKey> order_{&memory_};
};

}  // namespace kvmend::kv
