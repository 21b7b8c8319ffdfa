// Fifty black holes and one that returns (case R5), in small: the returning one must be back as
// fast as if it were the only one.
#include "sim/scenario_run.h"

namespace kvmend::sim {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kDead = 12;

void ask(Instance& from, Node& to, bool wait) {
  const auto session = from.engine().sessions().find_or_create(to.address());
  if (!session || !wait) return;
  auto transfer = std::make_shared<session::TransferState>();
  transfer->peer = to.address();
  transfer->grant = memory::kStandingGrant;
  transfer->raw = true;
  transfer->submitted = from.now();
  transfer->deadline = from.now() + 60s;
  transfer->pieces.push_back({from.pool().base(), {}, 1, 64});
  from.engine().submit(std::move(transfer));
}

}  // namespace

Report run_returning(std::uint64_t seed) {
  Run run("returning", seed, {.prefill = 2 + kDead, .pool = 256, .long_idle = true});
  Cluster& cluster = run.cluster();
  Dice dice(seed);
  for (std::size_t i = 0; i < 2 + kDead; ++i) cluster.add_node();
  Node& center = *cluster.nodes()[0];
  Node& back = *cluster.nodes()[1];
  center.start();
  back.start();
  for (std::size_t i = 1; i < cluster.nodes().size(); ++i) {
    run.reach().set_fault(center, *cluster.nodes()[i], {.drop_probability = 1});
    run.reach().set_fault(*cluster.nodes()[i], center, {.drop_probability = 1});
  }
  const bool demand = dice.chance(0.5);
  for (std::size_t i = 1; i < cluster.nodes().size(); ++i)
    ask(*center.instance(), *cluster.nodes()[i], demand);
  cluster.after(dice.between(Duration(6s), Duration(12s)), [&] {
    run.reach().clear_fault(center, back, run.reach().set_fault(center, back, {}));
    run.reach().clear_fault(back, center, run.reach().set_fault(back, center, {}));
  });
  cluster.run_for(12s + (demand ? 5s : 12s));
  Report report;
  run.complete(report);
  return report;
}

}  // namespace kvmend::sim
