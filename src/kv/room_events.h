// What the manager reports of its rooms: to metrics. Loop thread.
#pragma once

#include <cstdint>

#include "base/time.h"
#include "kvmend/kv.h"
#include "kvmend/status.h"
#include "memory/quarantine.h"

namespace kvmend::kv {

/// One room that has ended on this side.
struct RoomDone {
  KvRole role = KvRole::kPrefill;
  Code result = Code::kOk;
  std::uint64_t bytes = 0;    ///< as KvRoomMetrics has them
  std::uint64_t retries = 0;  ///< frames sent again
  Duration wait{};            ///< until the first byte moved, or the room ended without one
  Duration transfer{};        ///< from then on
};

class RoomEvents {
 public:
  virtual ~RoomEvents() = default;
  virtual void on_room_done(const RoomDone& done) = 0;
  /// `rooms` live now; `announced`: by decode, waiting for their senders.
  virtual void on_room_counts(KvRole role, std::size_t rooms, std::size_t announced) = 0;
  /// Rooms that are over and whose pages wait for a proof, now; `full`: new rooms are refused.
  virtual void on_quarantine(KvRole /*role*/, std::size_t /*rooms*/, std::uint64_t /*pages*/,
                             bool /*full*/) {}
  virtual void on_quarantine_released(KvRole /*role*/, memory::Release /*how*/) {}
};

}  // namespace kvmend::kv
