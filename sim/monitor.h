// Checkers that watch whole engines: recovery in time and only by contact (rule 4), bounds (rule
// 5), nothing left at the end.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>

#include "health/options.h"
#include "sim/cluster.h"
#include "sim/reach.h"

namespace kvmend::sim {

class Monitor final : public Part {
 public:
  Monitor(Cluster& cluster, Reach& reach);

  /// Looks no more: nobody asks for anything, so there is nothing to recover.
  void stop() { over_ = true; }
  /// Everything has been idle for long enough: whatever an engine still holds is a leak.
  void check_idle();
  /// Longest time a session stayed `failed` although its peer could be reached.
  [[nodiscard]] Duration slowest_recovery() const { return slowest_; }

  void on_session_state(Instance& instance, const std::string& session_id, std::string_view from,
                        std::string_view to, const Status& cause) override;

 private:
  void look();
  void check_recovery(Instance& instance);
  void check_bounds(Instance& instance);
  [[nodiscard]] Duration bound(Instance& instance, bool demanded) const;

  Cluster& cluster_;
  Reach& reach_;
  const health::HealthOptions health_;
  /// Since when transfers have waited for a session of this life.
  std::map<std::pair<std::uint64_t, std::string>, Time> demand_since_;
  /// Lives whose sessions have been lifted by a registration of that life, once each.
  std::set<std::pair<std::uint64_t, Incarnation>> registrations_;
  Duration slowest_{};
  bool over_ = false;
};

}  // namespace kvmend::sim
