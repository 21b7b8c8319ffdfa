// The manager's totals: written on the loop, read by any thread.
#pragma once

#include <atomic>
#include <cstdint>

#include "kvmend/kv.h"

namespace kvmend::kv {

struct Counters {
  using Count = std::atomic<std::uint64_t>;
  Count rooms{0};
  Count announced{0};
  Count announced_bytes{0};
  Count peers{0};
  Count transfers{0};
  Count rooms_succeeded{0};
  Count rooms_failed{0};
  Count rooms_refused{0};
  Count announced_refused{0};
  Count announced_expired{0};
  Count registrations_refused{0};
  Count unknown_messages{0};
  Count malformed_messages{0};
  Count late_messages{0};
  Count messages_repeated{0};
  Count bytes{0};
  Count quarantined_rooms{0};
  Count quarantined_pages{0};
  Count quarantine_refused{0};
  Count quarantine_released{0};
  Count quarantine_unproven{0};

  [[nodiscard]] KvManagerStats read() const {
    const auto get = [](const Count& count) { return count.load(std::memory_order_relaxed); };
    return {.rooms = get(rooms),
            .announced = get(announced),
            .announced_bytes = get(announced_bytes),
            .peers = get(peers),
            .transfers = get(transfers),
            .rooms_succeeded = get(rooms_succeeded),
            .rooms_failed = get(rooms_failed),
            .rooms_refused = get(rooms_refused),
            .announced_refused = get(announced_refused),
            .announced_expired = get(announced_expired),
            .registrations_refused = get(registrations_refused),
            .unknown_messages = get(unknown_messages),
            .malformed_messages = get(malformed_messages),
            .late_messages = get(late_messages),
            .messages_repeated = get(messages_repeated),
            .bytes = get(bytes),
            .quarantined_rooms = get(quarantined_rooms),
            .quarantined_pages = get(quarantined_pages),
            .quarantine_refused = get(quarantine_refused),
            .quarantine_released = get(quarantine_released),
            .quarantine_unproven = get(quarantine_unproven)};
  }
};

}  // namespace kvmend::kv
