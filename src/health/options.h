// What a user may tune about failure detection, blacklisting and probing, with the defaults.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "base/time.h"
#include "kvmend/status.h"

namespace kvmend::health {

using namespace std::chrono_literals;

/// What happens to a request whose session is blacklisted.
enum class ParkPolicy : std::uint8_t {
  kPark,      ///< hold it until the session recovers, its deadline or `park_max` comes
  kFailFast,  ///< end it at once with the session's reason
};

/// Immutable once an engine runs: every `SessionHealth` and `ProbeBudget` of it refers to one
/// instance, which must outlive them. The derivation of each default is in
/// docs/life-of-a-failure.md.
struct HealthOptions {
  // Detection.
  std::uint32_t failure_threshold = 3;  ///< strikes without a completed transfer between them
  Duration failure_window = 10s;        ///< older strikes no longer count
  Duration progress_deadline = 2s;      ///< outstanding work without an acknowledged byte
  Duration heartbeat_interval = 1s;     ///< a session without any sign of life asks for one

  // Blacklist.
  ParkPolicy policy = ParkPolicy::kPark;
  Duration park_max = Duration::max();  ///< longest time a request is parked; max: its deadline
  Duration refused_park_max =
      Duration::max();           ///< the same while the peer's host refuses connections
  Duration idle_timeout = 600s;  ///< without demand for so long: retired

  // Probes of one session.
  bool probes_enabled = true;  ///< off: only a registration or the peer's hello lifts
  Duration probe_first_delay = 100ms;
  Duration probe_max_interval = 5s;  ///< also after jitter
  std::uint32_t probe_jitter_percent = 20;
  Duration probe_demand_interval = 100ms;     ///< between starts while requests are parked
  Duration probe_hello_gap = 20ms;            ///< hellos trigger no probe sooner after the last one
  Duration probe_deadline = 1s;               ///< both stages together
  std::uint32_t max_overlapping_probes = 10;  ///< of one demanded session

  // Probes of the whole engine.
  std::uint32_t probe_max_in_flight = 512;
  std::uint32_t probes_per_second = 2'000;
  std::uint32_t probe_demand_weight = 4;  ///< with demand : without = 4 : 1 while both wait

  // Half-open trial.
  std::uint32_t trial_transfers = 3;    ///< k: successes a first trial needs
  std::uint32_t trial_concurrency = 3;  ///< trial transfers in flight: what a relapse can hit
  std::uint32_t trial_max_transfers = 48;
  Duration probation_step = 500ms;  ///< least length of the second trial; then it doubles
  Duration probation_max = 30s;
  Duration probation_decay = 30s;  ///< healthy time that takes one relapse back

  // Self-suspicion.
  double ejection_budget = 0.5;        ///< share blacklisted at a time; above, nothing fails fast
  double self_suspect_fraction = 0.5;  ///< more than this share lost within the window
  Duration self_suspect_window = 10s;
  std::uint32_t self_suspect_min_peers = 3;
  std::uint32_t self_stretch_factor = 3;  ///< own timeouts are multiplied by it meanwhile
  Duration self_suspect_max = 60s;        ///< without a further loss the suspicion ends

  std::size_t history_length = 16;  ///< transitions remembered per session
};

/// OK, or `kInvalidArgument` (caller) naming the first option that makes no sense.
[[nodiscard]] Status validate(const HealthOptions& options);

}  // namespace kvmend::health
