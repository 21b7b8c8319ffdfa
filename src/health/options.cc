#include "health/options.h"

#include <fmt/format.h>

#include <array>
#include <string_view>

namespace kvmend::health {
namespace {

struct Rule {
  std::string_view name;
  bool holds;
  std::string_view wants;
};

// Longest duration that may be doubled, stretched and added to a time point without overflow.
constexpr Duration kLongest = std::chrono::hours(24 * 365);

constexpr bool positive(Duration d) {
  return d > Duration::zero() && d <= kLongest;
}
constexpr bool share(double f) {
  return f > 0.0 && f <= 1.0;
}

}  // namespace

Status validate(const HealthOptions& o) {
  const std::array rules{
      Rule{"failure_threshold", o.failure_threshold >= 1 && o.failure_threshold <= 1'000,
           "1..1000"},
      Rule{"failure_window", positive(o.failure_window), "> 0"},
      Rule{"progress_deadline", positive(o.progress_deadline), "> 0"},
      Rule{"heartbeat_interval", positive(o.heartbeat_interval), "> 0"},
      Rule{"park_max", o.park_max >= Duration::zero(), ">= 0"},
      Rule{"idle_timeout", positive(o.idle_timeout), "> 0"},
      Rule{"probe_first_delay", positive(o.probe_first_delay), "> 0"},
      Rule{"probe_max_interval",
           positive(o.probe_max_interval) && o.probe_max_interval >= o.probe_first_delay,
           ">= probe_first_delay"},
      Rule{"probe_jitter_percent", o.probe_jitter_percent <= 50, "0..50"},
      Rule{"probe_demand_interval",
           positive(o.probe_demand_interval) && o.probe_demand_interval <= o.probe_max_interval,
           "> 0 and <= probe_max_interval"},
      Rule{"probe_hello_gap", positive(o.probe_hello_gap), "> 0"},
      Rule{"probe_deadline", positive(o.probe_deadline), "> 0"},
      Rule{"max_overlapping_probes",
           o.max_overlapping_probes >= 1 && o.max_overlapping_probes <= 1'000, "1..1000"},
      Rule{"probe_max_in_flight", o.probe_max_in_flight >= 1, ">= 1"},
      Rule{"probes_per_second", o.probes_per_second >= 1 && o.probes_per_second <= 1'000'000,
           "1..1000000"},
      Rule{"probe_demand_weight", o.probe_demand_weight >= 1 && o.probe_demand_weight <= 1'000,
           "1..1000"},
      Rule{"trial_transfers", o.trial_transfers >= 1, ">= 1"},
      Rule{"trial_concurrency", o.trial_concurrency >= 1, ">= 1"},
      Rule{"trial_max_transfers", o.trial_max_transfers >= o.trial_transfers, ">= trial_transfers"},
      Rule{"probation_step", positive(o.probation_step), "> 0"},
      Rule{"probation_max", positive(o.probation_max) && o.probation_max >= o.probation_step,
           ">= probation_step"},
      Rule{"probation_decay", positive(o.probation_decay), "> 0"},
      Rule{"ejection_budget", share(o.ejection_budget), "in (0, 1]"},
      Rule{"self_suspect_fraction", share(o.self_suspect_fraction), "in (0, 1]"},
      Rule{"self_suspect_window", positive(o.self_suspect_window), "> 0"},
      Rule{"self_suspect_min_peers", o.self_suspect_min_peers >= 1, ">= 1"},
      Rule{"self_stretch_factor", o.self_stretch_factor >= 1 && o.self_stretch_factor <= 100,
           "1..100"},
      Rule{"self_suspect_max", positive(o.self_suspect_max), "> 0"},
      Rule{"history_length", o.history_length >= 1 && o.history_length <= 1'024, "1..1024"},
  };
  for (const Rule& rule : rules) {
    if (!rule.holds) {
      return {Code::kInvalidArgument, Origin::kCaller,
              fmt::format("health option {} must be {}", rule.name, rule.wants)};
    }
  }
  return Status::ok();
}

}  // namespace kvmend::health
