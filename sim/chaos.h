// Seeded faults on a cluster: links, stops, crashes. One at a time per link; they overlap across
// links and processes.
#pragma once

#include <string_view>
#include <vector>

#include "sim/cluster.h"
#include "sim/reach.h"

namespace kvmend::sim {

enum class Trouble : std::uint8_t {
  kDelay,
  kLoss,
  kSlow,
  kReset,
  kOneWay,     ///< one direction drops everything
  kBlackHole,  ///< both do
  kSilentSyn,  ///< standing connections work, new ones get no answer
  kRefuse,
  kSmallOnly,  ///< large packets vanish: handshakes pass, data doesn't
  kCorrupt,    ///< a bit of a segment flips, unnoticed by the link
  kPause,
  kClockJump,
  kCrash,        ///< and a restart at the same address, with other memory
  kHoldAccepts,  ///< connections wait in the backlog
  kFewDescriptors,
};

struct ChaosOptions {
  std::vector<Trouble> menu;  ///< one is picked each time; repeat an entry to make it likelier
  Duration from{};            ///< of the run
  Duration until{};           ///< faults begin before this; all have ended `longest` later
  Duration mean_gap = std::chrono::milliseconds(700);
  Duration longest = std::chrono::seconds(6);
};

class Chaos {
 public:
  Chaos(Cluster& cluster, Reach& reach, ChaosOptions options);

  /// Ends every fault and brings back every process.
  void end_all();
  [[nodiscard]] bool corrupts() const { return corrupts_; }

 private:
  void schedule_next();
  void strike();
  void link_fault(Trouble what);
  void put(Node& a, Node& b, const env::sim::Fault& fault, Duration length);
  void process_fault(Trouble what);
  void crash(Node& node);
  [[nodiscard]] Duration length() {
    return dice_.skewed(std::chrono::milliseconds(20), options_.longest);
  }

  Cluster& cluster_;
  Reach& reach_;
  const ChaosOptions options_;
  Dice dice_;
  Duration elapsed_{};
  bool corrupts_ = false;
  bool over_ = false;
};

}  // namespace kvmend::sim
