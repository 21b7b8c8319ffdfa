// A process that forwards tcp connections and delays every byte: a long way, on one machine.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <vector>

namespace kvmend::bench {

/// Forks a process that listens on loopback once for each of `targets` (ports) and forwards to it;
/// every byte arrives `one_way` later, in both directions. Returns its ports through `ports`; the
/// process ends with its parent. Call before any thread exists.
pid_t fork_delay_proxy(const std::vector<std::uint16_t>& targets, std::chrono::microseconds one_way,
                       std::vector<std::uint16_t>& ports);

}  // namespace kvmend::bench
