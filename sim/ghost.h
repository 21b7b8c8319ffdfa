// A stranger on the network: says hellos of the past and of other processes, and nonsense. Nothing
// of it may be accepted, and nobody may suffer.
#pragma once

#include <memory>
#include <vector>

#include "sim/cluster.h"

namespace kvmend::sim {

struct GhostOptions {
  Duration from{};
  Duration until{};
  Duration gap = std::chrono::milliseconds(250);
};

class Ghost final : public Part {
 public:
  Ghost(Cluster& cluster, GhostOptions options);
  ~Ghost() override;

  [[nodiscard]] std::uint64_t refused() const { return refused_; }
  /// Closes what it has open.
  void finish();

 private:
  class Call;

  void schedule();
  void haunt();
  std::vector<std::byte> make_hello(Instance& from, Instance& to, std::string& what);

  Cluster& cluster_;
  const GhostOptions options_;
  Dice dice_;
  Duration elapsed_{};
  env::sim::SimProcess& process_;
  std::vector<std::unique_ptr<Call>> calls_;
  std::uint64_t refused_ = 0;
};

}  // namespace kvmend::sim
