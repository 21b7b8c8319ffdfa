// One run: puts a cluster, its load, its checkers and its troubles together, and sees it to the
// end.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "sim/chaos.h"
#include "sim/ghost.h"
#include "sim/grant_rooms.h"
#include "sim/kv_rooms.h"
#include "sim/monitor.h"
#include "sim/pair_rooms.h"
#include "sim/raw_load.h"
#include "sim/reach.h"
#include "sim/scenarios.h"

namespace kvmend::sim {

struct Shape {
  std::size_t prefill = 2;  ///< or just nodes, where roles don't matter
  std::size_t decode = 0;
  std::size_t pool = 0;
  double slow_link = 0;    ///< bytes per second; 0: as the seed says
  bool tight = false;      ///< the smallest windows and buffers, and nothing goes wrong
  bool long_idle = false;  ///< sessions that nobody asks for stay
};

/// Phases: load and troubles; then everything is well again and must end; then nobody asks for
/// anything and all must be freed.
class Run {
 public:
  Run(std::string_view scenario, std::uint64_t seed, const Shape& shape);

  KvRooms& add_kv(KvRoomsOptions options);
  GrantRooms& add_grant_rooms(GrantRoomOptions options);
  PairRooms& add_pairs();
  RawLoad& add_raw(RawOptions options);
  void add_chaos(std::vector<Trouble> menu, Duration mean_gap = std::chrono::milliseconds(700),
                 Duration longest = std::chrono::seconds(6));
  void add_ghost();

  [[nodiscard]] Cluster& cluster() { return *cluster_; }
  [[nodiscard]] Reach& reach() { return *reach_; }
  [[nodiscard]] Monitor& monitor() { return *monitor_; }

  template <class Load>
  Report finish(Load& load, bool all_must_succeed = false) {
    run_phases();
    Report report;
    report.succeeded = load.succeeded();
    report.failed = load.failed();
    if (all_must_succeed && report.failed > 0)
      cluster_->verdict().report(3, "something failed although nothing was wrong");
    complete(report);
    return report;
  }

  /// Fills in what every report says; the cluster is at its end then.
  void complete(Report& report);

 private:
  void run_phases();

  const Shape shape_;
  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<Reach> reach_;
  std::unique_ptr<Monitor> monitor_;
  std::unique_ptr<KvRooms> kv_;
  std::unique_ptr<GrantRooms> grant_rooms_;
  std::unique_ptr<PairRooms> pairs_;
  std::unique_ptr<RawLoad> raw_;
  std::unique_ptr<Ghost> ghost_;
  std::unique_ptr<Chaos> chaos_;
};

/// The scenario with many black holes has a shape of its own.
Report run_returning(std::uint64_t seed);

}  // namespace kvmend::sim
