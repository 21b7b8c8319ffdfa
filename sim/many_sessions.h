// One engine with thousands of black-holed sessions: what probing them costs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace kvmend::sim {

/// Runs it and returns what it measured, as JSON. The CPU time includes the simulated network.
[[nodiscard]] std::string measure_many_sessions(std::size_t sessions, std::uint64_t seed);

}  // namespace kvmend::sim
