// Hardware that writes past the receiver's checks, as RDMA does: what was begun lands whenever it
// likes, whatever either side has decided meanwhile, until its endpoint is destroyed.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <set>

#include "sim/dice.h"
#include "sim/kv_port.h"

namespace kvmend::sim {

struct OneSidedOptions {
  /// A write reports its end when nothing of it is under way any more, and endpoints can be
  /// destroyed. False: a foreign engine, whose failed writes go on unseen.
  bool tells_the_truth = true;
  Duration step = std::chrono::milliseconds(20);      ///< at most, from piece to piece
  Duration stall = std::chrono::milliseconds(3'000);  ///< at most, of one write that stalls
  double stall_share = 0.3;
  double fail_share = 0.05;  ///< writes that break by themselves
};

/// The wires of a cluster: every write that is under way. Outlives the ports. Single-threaded.
class OneSidedWire {
 public:
  OneSidedWire(Cluster& cluster, OneSidedOptions options);

  [[nodiscard]] const OneSidedOptions& options() const { return options_; }
  /// Pieces that landed after the end of their write had been reported or asked for.
  [[nodiscard]] std::uint64_t landed_late() const { return landed_late_; }

 private:
  friend class OneSidedPort;
  struct Flight {
    kv::WriteId id;
    std::uint64_t from = 0;  ///< instance
    std::uint64_t to = 0;
    std::size_t from_node = 0;
    std::size_t to_node = 0;
    kv::Write write;
    std::size_t next = 0;       ///< piece
    std::optional<Status> why;  ///< it was given up, or has broken
    std::weak_ptr<bool> port;   ///< whose `write` it was
  };
  using Flights = std::list<std::shared_ptr<Flight>>;

  void begin(std::shared_ptr<Flight> flight);
  void schedule(const std::shared_ptr<Flight>& flight);
  void land(const std::shared_ptr<Flight>& flight);
  void give_up(const std::shared_ptr<Flight>& flight, const Status& why);
  void report(Flight& flight, const Status& result);
  /// The instance, while it lives.
  [[nodiscard]] Instance* find(std::size_t node, std::uint64_t number) const;
  /// Nothing between the two lands any more, nor anything under grants `here` has issued to it.
  void destroy(Instance& here, std::size_t peer);

  Cluster& cluster_;
  const OneSidedOptions options_;
  Dice dice_;
  Flights flights_;
  std::set<std::pair<std::uint64_t, GrantId>> void_;  ///< instance and grant
  std::uint64_t landed_late_ = 0;
};

/// One per manager; beside the real engine, which carries the messages.
class OneSidedPort final : public WatchedPort {
 public:
  OneSidedPort(OneSidedWire& wire, Instance& instance, PageSeed seed)
      : WatchedPort(instance, std::move(seed), false), wire_(wire) {}

  [[nodiscard]] memory::LandingRules landing() const override {
    return {.grants_are_checked = false, .failed_writes_rest = wire_.options().tells_the_truth};
  }
  [[nodiscard]] bool fence(const Address& peer, std::move_only_function<void()> done) override;
  kv::WriteId write(kv::Write write) override;
  void cancel(kv::WriteId write, const Status& why) override;

 private:
  [[nodiscard]] bool permits_outlive_grants() const override { return true; }

  OneSidedWire& wire_;
  std::uint64_t last_write_ = 0;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace kvmend::sim
