// Prefill: rooms that decode has announced before their sender exists. Bounded in number and bytes,
// for each peer and in total, so that one can't keep the others out; each expires. Loop thread.
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
  std::optional<Status> aborted;  ///< decode has given the room up already, or is gone

  [[nodiscard]] std::size_t bytes() const;
};

class AnnouncedRooms {
 public:
  explicit AnnouncedRooms(Counters& counters) : counters_(counters) {}

  /// Keeps an announcement until `expires`. It replaces an earlier attempt of the same engine.
  /// Errors: kResourceExhausted (the maxima of config.h, in total and per peer; counted),
  /// kAlreadyExists (as many engines as the room takes have announced it), kInvalidArgument (it
  /// disagrees with the others about how many that are).
  Status add(Announcement announcement, Time expires);
  /// The word of exactly this process under exactly this attempt.
  [[nodiscard]] Announcement* find(RoomId room, const Peer& peer, std::uint32_t attempt);
  /// Every engine's word on the room; empty when nobody has announced it.
  [[nodiscard]] std::vector<Announcement> take(RoomId room);
  /// Frees the pages of an announcement that decode has aborted; the reason stays for the sender.
  /// False when it doesn't stand here.
  bool mark_aborted(RoomId room, const Peer& peer, std::uint32_t attempt, Status why);

  /// Takes out what has expired (counted).
  std::vector<Announcement> expire(Time now);
  [[nodiscard]] Time next_expiry() const {
    return by_expiry_.empty() ? kForever : std::get<0>(*by_expiry_.begin());
  }
  /// Another process answers there: what the earlier one announced is marked aborted, so that a
  /// sender who claims it learns why.
  void on_incarnation(const std::string& session_id, Incarnation now);
  [[nodiscard]] std::vector<Announcement> take_all();
  [[nodiscard]] std::size_t size() const { return by_expiry_.size(); }

 private:
  struct Entry {
    Announcement announcement;
    Time expires;
  };
  struct Usage {
    std::size_t rooms = 0;
    std::size_t bytes = 0;
  };
  using Rooms = std::unordered_map<RoomId, std::vector<Entry>>;

  Status check_room(std::vector<Entry>& standing, const Announcement& announcement);
  Status check_limits(const Announcement& announcement);
  /// Takes one entry out; the room's list may become empty and stays.
  Announcement remove(std::vector<Entry>& list, std::size_t index);
  void abort(Announcement& announcement, Status why);
  void add_usage(const Announcement& announcement);
  void drop_usage(const Announcement& announcement);
  void count();

  Counters& counters_;
  Rooms rooms_;
  std::set<std::tuple<Time, RoomId, std::string>> by_expiry_;  // session id: one word per engine
  std::unordered_map<std::string, Usage> per_peer_;
  std::size_t bytes_ = 0;
};

}  // namespace kvmend::kv
