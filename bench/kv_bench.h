// The parts of `kvmend_kv_bench`.
#pragma once

#include <nlohmann/json.hpp>

#include "kv_pool.h"

namespace kvmend::bench {

struct KvSettings {
  bool local = false;  ///< else by tcp
  bool pin = false;
  int rounds = 5;
  std::uint32_t rooms = 10'000;  ///< of the memory case
  int waves = 6;                 ///< of them, after those that fill what is bounded
  std::uint32_t aborts = 1'000;
};

/// Each returns one row.
[[nodiscard]] nlohmann::json run_speed(const KvShape& shape, const KvSettings& settings);
/// `rooms` rooms at once, again and again: what one costs, and what a finished one leaves.
[[nodiscard]] nlohmann::json run_rooms(const KvSettings& settings);
/// Both sides change roles under load, a hundred times.
[[nodiscard]] nlohmann::json run_switch(const KvSettings& settings);
/// Aborts in the middle of throttled writes: how soon pages are free, and whether a byte of them
/// changes afterwards.
[[nodiscard]] nlohmann::json run_aborts(const KvSettings& settings);

}  // namespace kvmend::bench
