// The scenarios: which cluster, which load, which troubles.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "sim/cluster.h"
#include "sim/violation.h"

namespace kvmend::sim {

/// What a run came to. The same (scenario, seed, break) gives the same hash on every machine.
struct Report {
  std::optional<Violation> violation;
  std::uint64_t trace_hash = 0;
  std::uint64_t steps = 0;
  double virtual_seconds = 0;
  std::uint64_t succeeded = 0;  ///< rooms and transfers
  std::uint64_t failed = 0;
  std::uint64_t aborted_midway = 0;  ///< rooms that decode aborted while bytes were under way
  std::uint64_t restarts = 0;        ///< processes that came back at their address
  std::uint64_t aborts = 0;          ///< rooms and transfers given up on purpose
  double slowest_recovery_seconds = 0;
};

struct Scenario {
  std::string_view name;
  std::string_view about;
  Report (*run)(std::uint64_t seed);
};

[[nodiscard]] std::span<const Scenario> scenarios();
[[nodiscard]] const Scenario* find_scenario(std::string_view name);

}  // namespace kvmend::sim
