// Keeps closed objects alive until the end of the turn: they may be on the call stack.
#pragma once

#include <memory>

#include "env/event_loop.h"
#include "transport/lane.h"

namespace kvmend::session {

/// Closes the lane now and destroys it after this turn of the loop. Loop thread.
inline void bury(env::EventLoop& loop, std::unique_ptr<transport::Lane> lane) {
  if (!lane) return;
  lane->set_observer(nullptr);
  lane->close();
  loop.post([lane = std::move(lane)] {});
}

}  // namespace kvmend::session
