// The public recovery options in health's own terms.
#pragma once

#include "health/options.h"
#include "kvmend/options.h"

namespace kvmend::session {

/// Everything that the public options don't name keeps health's default.
[[nodiscard]] inline health::HealthOptions to_health_options(const RecoveryOptions& from) {
  health::HealthOptions to;
  to.failure_threshold = from.failure_threshold;
  to.failure_window = from.failure_window;
  to.progress_deadline = from.progress_deadline;
  to.heartbeat_interval = from.heartbeat;
  to.policy = from.policy == FailedSessionPolicy::kPark ? health::ParkPolicy::kPark
                                                        : health::ParkPolicy::kFailFast;
  if (from.park_max.count() > 0) to.park_max = from.park_max;
  if (from.refused_park_max.count() > 0) to.refused_park_max = from.refused_park_max;
  to.idle_timeout = from.idle_timeout;
  to.probes_enabled = from.probe;
  to.probe_first_delay = from.probe_first;
  to.probe_max_interval = from.probe_max;
  to.probe_demand_interval = from.probe_demand;
  to.probe_deadline = from.probe_deadline;
  to.probe_max_in_flight = from.probes_in_flight;
  to.probes_per_second = from.probes_per_second;
  to.trial_transfers = from.probation_transfers;
  return to;
}

}  // namespace kvmend::session
