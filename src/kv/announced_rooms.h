// Prefill: rooms that decode has announced before their sender exists. Bounded in number and bytes;
// each expires. Loop thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/time.h"
#include "kv/plan.h"
#include "kv/role.h"

namespace kvmend::kv {

/// One decode engine's word on a room: where its pages go, and the grant that opens them.
struct Announcement {
  Peer peer;
  std::shared_ptr<const TransferPlan> plan;
  wire::KvRoomMetadata metadata;
  Time deadline = kForever;       ///< the grant's end, by our clock
  std::optional<Status> aborted;  ///< decode has given the room up already

  [[nodiscard]] std::size_t bytes() const;
};

class AnnouncedRooms {
 public:
  explicit AnnouncedRooms(Counters& counters) : counters_(counters) {}

  /// Keeps an announcement until `expires`. Errors: kResourceExhausted (config::kMaxAnnouncedRooms,
  /// kMaxAnnouncedBytes; counted), kAlreadyExists (another one stands for the room).
  Status add(Announcement announcement, Time expires);
  [[nodiscard]] Announcement* find(RoomId room);
  std::optional<Announcement> take(RoomId room);
  /// Frees the pages of an announcement that decode has aborted; the reason stays for the sender.
  void mark_aborted(RoomId room, Status why);

  /// Takes out what has expired (counted).
  std::vector<Announcement> expire(Time now);
  [[nodiscard]] Time next_expiry() const {
    return by_expiry_.empty() ? kForever : by_expiry_.begin()->first;
  }
  /// Drops the announcements of other processes than `now` at this address.
  void on_incarnation(const std::string& session_id, Incarnation now);
  [[nodiscard]] std::vector<Announcement> take_all();
  [[nodiscard]] std::size_t size() const { return rooms_.size(); }

 private:
  struct Entry {
    Announcement announcement;
    Time expires;
  };
  Announcement remove(std::unordered_map<RoomId, Entry>::iterator at);
  void count();

  Counters& counters_;
  std::unordered_map<RoomId, Entry> rooms_;
  std::set<std::pair<Time, RoomId>> by_expiry_;
  std::size_t bytes_ = 0;
};

}  // namespace kvmend::kv
