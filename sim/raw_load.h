// Users of the raw engine API: writes into, and reads from, regions that the standing grant opens.
// Every version of a slot has a pattern of its own, so late bytes of an older one show.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "session/transfer_state.h"
#include "sim/cluster.h"
#include "sim/load.h"

namespace kvmend::sim {

struct RawOptions {
  Duration from{};
  Duration until{};
  Duration gap = std::chrono::milliseconds(30);  ///< between two submits of the cluster
  bool checksum = false;
  bool corrupt_links = false;  ///< without checksum nothing is known about the bytes
  double cancel_share = 0.03;
  double reregister_share =
      0;  ///< of targets: the inbox is deregistered and other memory put there
  Duration deadline_min = std::chrono::milliseconds(300);
  Duration deadline_max = std::chrono::seconds(12);
};

/// Layout of a pool: the inbox (a few slots per initiator), then the outbox of the own node.
class RawLoad final : public Part {
 public:
  RawLoad(Cluster& cluster, RawOptions options);
  ~RawLoad() override;

  [[nodiscard]] std::size_t pending() const { return jobs_.size(); }
  [[nodiscard]] std::uint64_t succeeded() const { return ok_; }
  [[nodiscard]] std::uint64_t failed() const { return not_ok_; }
  /// Ends what the application still allows, so that nothing of it counts as a leak.
  void finish();

  void on_started(Instance& instance) override;
  void on_killed(Instance& instance) override;
  void on_step() override;

  static std::size_t pool_bytes();

 private:
  struct Job;
  struct Slot {
    bool busy = false;
    bool spoilt = false;  ///< a write into it failed: its late bytes may come at any time
  };

  void act();
  void submit(Instance& from, Instance& to);
  void reregister(Instance& instance);
  void finished(const std::shared_ptr<Job>& job, const Status& status);
  void end_permits(Job& job);
  Instance* life(std::size_t node, std::uint64_t number);
  static void open_regions(Instance& instance);

  Cluster& cluster_;
  const RawOptions options_;
  Dice dice_;
  Arrivals arrivals_;
  std::vector<std::shared_ptr<Job>> jobs_;
  /// By (life of the target, slot): what was promised to whom.
  std::map<std::pair<std::uint64_t, std::size_t>, Slot> inbox_;
  std::map<std::pair<std::uint64_t, std::size_t>, Slot> outbox_;
  std::map<std::uint64_t, std::size_t> inbox_begin_;  ///< by life
  std::map<std::uint64_t, PermitId> serving_;         ///< by life: reads by peers are allowed
  /// Permits of failed writes, by life of the target: their bytes may come late.
  std::vector<std::pair<std::uint64_t, PermitId>> late_;
  std::uint64_t versions_ = 0;
  std::uint64_t ok_ = 0;
  std::uint64_t not_ok_ = 0;
};

}  // namespace kvmend::sim
