#include "sim/many_sessions.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <map>

#include "health/probe_schedule.h"
#include "session/health_options.h"
#include "sim/cluster.h"

namespace kvmend::sim {
namespace {

using namespace std::chrono_literals;

constexpr std::uint16_t kFirstPort = 2'000;
constexpr Duration kMeasured = 30s;

double cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double resident_mib() {
  std::ifstream statm("/proc/self/statm");
  std::size_t total = 0;
  std::size_t resident = 0;
  statm >> total >> resident;
  return static_cast<double>(resident * static_cast<std::size_t>(sysconf(_SC_PAGESIZE))) /
         (1024.0 * 1024.0);
}

}  // namespace

std::string measure_many_sessions(std::size_t sessions, std::uint64_t seed) {
  const double rss_before = resident_mib();
  ClusterOptions options;
  options.pool_bytes = 64;
  options.engine.recovery.idle_timeout = std::chrono::hours(24);
  Cluster cluster(seed, options);
  Node& center = cluster.add_node();
  center.start();
  // Hosts that answer nothing.
  constexpr std::size_t kPerHost = 50'000;
  for (std::size_t i = 0; i < sessions; ++i) {
    const std::string ip = fmt::format("10.1.0.{}", i / kPerHost + 1);
    if (i % kPerHost == 0) {
      cluster.world().add_host(ip);
      cluster.world().network().set_fault(center.ip(), ip, {.drop_probability = 1});
    }
    const auto port = static_cast<std::uint16_t>(kFirstPort + i % kPerHost);
    const auto session = center.instance()->engine().sessions().find_or_create({ip, port});
    if (!session) return fmt::format("{{\"error\": \"{}\"}}\n", session.error().to_string());
  }
  cluster.run_for(60s);  // all have failed, and their intervals have grown
  const auto failed = std::ranges::count_if(center.instance()->sessions(), [](const auto& entry) {
    return entry.second.state == "failed";
  });
  const EngineStats before = center.instance()->engine().stats();
  const double cpu_before = cpu_seconds();
  const std::uint64_t steps_before = cluster.steps();
  std::size_t most_descriptors = 0;
  for (Duration passed{}; passed < kMeasured; passed += 100ms) {
    cluster.run_for(100ms);
    most_descriptors = std::max(most_descriptors, center.instance()->process().open_descriptors());
  }
  const double cpu = (cpu_seconds() - cpu_before) / to_seconds(kMeasured);
  const EngineStats after = center.instance()->engine().stats();
  const double rss = resident_mib() - rss_before;
  const auto bound =
      health::recovery_bound(sessions, session::to_health_options(options.engine.recovery), false);
  return fmt::format(
      "{{\"sessions\": {}, \"failed\": {}, \"probes_per_second\": {:.1f}, \"bound_s\": {:.1f}, "
      "\"cpu_share\": {:.4f}, \"events_per_second\": {:.0f}, \"resident_mib\": {:.1f}, "
      "\"kib_per_session\": {:.2f}, \"most_descriptors\": {}}}\n",
      sessions, failed,
      static_cast<double>(after.probes_failed - before.probes_failed) / to_seconds(kMeasured),
      to_seconds(bound), cpu,
      static_cast<double>(cluster.steps() - steps_before) / to_seconds(kMeasured), rss,
      rss * 1024 / static_cast<double>(sessions), most_descriptors);
}

}  // namespace kvmend::sim
