// The room's status machine. Pure; any thread.
//
//        (none) --create--> Bootstrapping --> WaitingForInput --> Transferring --> Success
//           \---create------------------------^                                      (end)
//        everything but Success --> Failed (end)
//
// Statuses only rise: an older one that arrives late changes nothing. One deliberate difference to
// the reference: there a late Failed overwrites Success; here Success is an end, since the caller
// owns the pages from then on.
#pragma once

#include <optional>

#include "kvmend/kv.h"

namespace kvmend::kv {

/// The status after `next` is reported to a room at `current` (nothing: it doesn't exist yet).
/// Nothing comes back when `next` can't create a room.
[[nodiscard]] constexpr std::optional<KvStatus> next_status(std::optional<KvStatus> current,
                                                            KvStatus next) {
  if (!current) {
    if (next == KvStatus::kBootstrapping || next == KvStatus::kWaitingForInput) return next;
    return std::nullopt;
  }
  if (is_terminal(*current)) return current;
  if (next == KvStatus::kFailed) return next;
  return *current < next ? next : *current;
}

}  // namespace kvmend::kv
