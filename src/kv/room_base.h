// What a room is on either side: a handle, a deadline, and one timer for everything that is due.
// Loop thread.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "env/event_loop.h"
#include "kv/role.h"

namespace kvmend::kv {

class RoomBase : public std::enable_shared_from_this<RoomBase> {
 public:
  RoomBase(const RoomBase&) = delete;
  RoomBase& operator=(const RoomBase&) = delete;
  virtual ~RoomBase() = default;

  /// Arms the deadline. Call once the room stands in its table.
  void start() { arm(); }
  /// Ends the room with its first cause; later ones are ignored.
  virtual void fail(Status why) = 0;
  [[nodiscard]] const std::shared_ptr<RoomHandle>& handle() const { return handle_; }

 protected:
  RoomBase(const Surroundings& around, std::shared_ptr<RoomHandle> handle)
      : around_(around),
        handle_(std::move(handle)),
        deadline_(saturating_add(around.now(), around.options.room_deadline)),
        timer_(around.port.loop()) {}

  /// The next moment of `on_due`; kForever when there is none.
  [[nodiscard]] virtual Time next_due() const = 0;
  /// Does what is due. May end the room.
  virtual void on_due(Time now) = 0;
  /// Whether the room's end is decided: the timer rests.
  [[nodiscard]] virtual bool ended() const = 0;
  /// What the room waits for, for the reason of a passed deadline.
  [[nodiscard]] virtual std::string where_it_stands() const = 0;

  void arm();
  void rest() { timer_.cancel(); }

  const Surroundings& around_;
  const std::shared_ptr<RoomHandle> handle_;
  Time deadline_;

 private:
  void on_timer();
  env::ScopedTimer timer_;
};

}  // namespace kvmend::kv
