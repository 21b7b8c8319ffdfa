// Many seeds on all cores, and what came of them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sim/scenarios.h"

namespace kvmend::sim {

struct Batch {
  std::string fault = "none";  ///< what is broken
  const Scenario* scenario = nullptr;
  std::uint64_t first_seed = 0;
  std::uint64_t seeds = 0;
  bool twice = false;  ///< and the second time must be like the first, event by event
};

struct Row {
  Batch batch;
  std::uint64_t violations = 0;
  std::uint64_t first_seed = 0;  ///< of the violations
  Violation first;
  std::uint64_t steps = 0;
  std::uint64_t trace_hash = 0;  ///< over the seeds, in any order
  std::uint64_t succeeded = 0;
  std::uint64_t failed = 0;
  std::uint64_t aborted_midway = 0;
  std::uint64_t restarts = 0;
  std::uint64_t aborts = 0;
  double virtual_seconds = 0;
  double cpu_seconds = 0;
  double slowest_recovery_seconds = 0;
};

/// Runs all seeds of all batches on `threads` threads, each world on one of them.
[[nodiscard]] std::vector<Row> run_batches(const std::vector<Batch>& batches, unsigned threads);

/// The command that does exactly that again.
[[nodiscard]] std::string replay_command(std::string_view scenario, std::uint64_t seed,
                                         std::string_view fault);
/// JSON: an array of {"break","scenario","seeds","violations","first_seed"}, and what the runs
/// held: "restarts","aborts","succeeded","failed".
[[nodiscard]] std::string to_json(const std::vector<Row>& rows);

/// Makes a failed KVM_CHECK print the replay command of the run on that thread before it aborts.
void print_replay_on_abort();

}  // namespace kvmend::sim
