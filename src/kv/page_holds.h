// Pages of rooms that are over, where the engine can't prove that nobody touches them: the
// manager's side of memory/quarantine.h. Fences at the room's deadline, tells the room's handle
// when its pages are free, counts, shows and alarms. Idle where grants are checked. Loop thread.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/log.h"
#include "env/event_loop.h"
#include "kv/finished_rooms.h"
#include "kv/role.h"
#include "memory/quarantine.h"

namespace kvmend::kv {

class PageHolds {
 public:
  PageHolds(const Surroundings& around, KvRole role);

  /// OK, or why no new room may begin: too much of the pool waits. Counted.
  [[nodiscard]] Status admits();

  /// The room's `pages` of the kv pool wait for `holders` (not empty); `handle` was told to hold
  /// them. From `deadline` on holders may be fenced off.
  void hold(const RoomKey& key, const std::shared_ptr<RoomHandle>& handle, std::uint64_t pages,
            const std::vector<Peer>& holders, Time deadline);
  /// That process has nothing of the room under way any more.
  void on_drained(const RoomKey& key, const Peer& from);
  void on_incarnation(const std::string& session_id, Incarnation now);
  void on_registered_anew(const std::string& session_id);
  /// The manager has gone and its pools are unregistered. Where that is no proof
  /// (EnginePort::unregister_memory), handles keep their pages for good.
  void close();

  [[nodiscard]] std::size_t size() const { return ids_.size(); }

 private:
  void on_released(const RoomKey& key, const std::weak_ptr<RoomHandle>& handle,
                   memory::Release how);
  void fence_due();
  void changed();
  void arm();

  const Surroundings& around_;
  const KvRole role_;
  memory::Quarantine quarantine_;
  std::unordered_map<RoomKey, memory::Quarantine::Id, RoomKeyHash> ids_;
  std::set<std::string> fencing_;
  bool can_fence_ = true;
  LogLimiter full_log_{std::chrono::seconds{10}};
  LogLimiter unproven_log_{std::chrono::seconds{1}};
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  env::ScopedTimer timer_;
};

}  // namespace kvmend::kv
