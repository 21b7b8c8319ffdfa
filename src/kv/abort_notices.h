// Aborts that peers haven't acknowledged yet: sent again, under the room's attempt number, until
// every one of them has answered, has died, or config::kKvAbortRepeatFor has passed. The room
// itself is over long before; what it covered is safe without them (its grants are revoked). Loop
// thread.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "env/event_loop.h"
#include "kv/finished_rooms.h"
#include "kv/repeat.h"
#include "kv/role.h"

namespace kvmend::kv {

class AbortNotices {
 public:
  explicit AbortNotices(const Surroundings& around) : around_(around), timer_(around.port.loop()) {}

  /// Tells `peers` and waits for each one's acknowledgement; then `handle` (if it still lives) is
  /// told. `key.decode` may differ per peer on the prefill side: one call per attempt then.
  void send(const RoomKey& key, const wire::KvRoomAbort& message, const std::vector<Peer>& peers,
            const std::shared_ptr<RoomHandle>& handle);
  /// False: nobody waits for it (a repeated or made-up one).
  bool on_ack(const RoomKey& key, const Peer& from);
  /// Another process answers there: the one that was told is dead, which is an answer too.
  void on_incarnation(const std::string& session_id, Incarnation now);
  void clear();
  [[nodiscard]] std::size_t size() const { return waiting_.size(); }

 private:
  struct Notice {
    wire::KvRoomAbort message;
    std::vector<Peer> peers;  ///< without an answer
    std::weak_ptr<RoomHandle> handle;
    Repeat repeat;
    Time until = kForever;
  };
  using Waiting = std::unordered_map<RoomKey, Notice, RoomKeyHash>;

  void settle(Waiting::iterator at);
  void arm();
  void on_timer();

  const Surroundings& around_;
  Waiting waiting_;
  env::ScopedTimer timer_;
};

}  // namespace kvmend::kv
