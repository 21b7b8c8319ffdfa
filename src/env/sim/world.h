// A deterministic world in memory: hosts, processes, byte streams, faults, all on virtual time and
// from one seed. Code written against env::Env runs in it unchanged.
//
//   SimWorld world(seed);
//   SimProcess& p = world.add_host("10.0.0.1").start_process("prefill");
//   Engine engine(p.env(), ...);
//   world.network().set_fault("10.0.0.1", "10.0.0.2", {.drop_probability = 1});
//   ASSERT_TRUE(world.run_until([&] { return done; }, 10s));
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "env/sim/core.h"
#include "env/sim/fabric.h"
#include "env/sim/host.h"
#include "env/sim/options.h"
#include "env/sim/process.h"

namespace kvmend::env::sim {

/// Single-threaded; nothing happens outside of `step` and the functions that call it. Two worlds
/// with the same seed and the same script do the same, event by event (`trace_hash`). Objects that
/// use a process's environment must be destroyed before the world.
class SimWorld {
 public:
  explicit SimWorld(std::uint64_t seed, const SimOptions& options = {});
  ~SimWorld();
  SimWorld(const SimWorld&) = delete;
  SimWorld& operator=(const SimWorld&) = delete;

  /// Adds a machine with this IP.
  SimHost& add_host(const std::string& ip);
  [[nodiscard]] SimHost& host(const std::string& ip);
  [[nodiscard]] SimFabric& network() { return fabric_; }
  [[nodiscard]] SimRandom& random() { return core_.random; }

  /// The world's time; no process's clock shows it.
  [[nodiscard]] Time now() const { return core_.now; }
  /// Runs `task` (a step of the script: a fault, a kill) when so much time has passed.
  void after(Duration delay, Task task);

  /// Runs the next event. False when there is none.
  bool step();
  /// Runs events until the predicate holds, looking after each; false when `limit` passed first.
  bool run_until(const std::function<bool()>& predicate, Duration limit);
  void run_for(Duration duration);

  /// A hash over everything that has happened so far.
  [[nodiscard]] std::uint64_t trace_hash() const { return core_.trace.value(); }
  /// Adds something of the test's own to it.
  void note(const char* what, std::uint64_t value) { core_.note(what, value); }
  /// Gets one line per event, to look at a failure.
  void set_trace_sink(std::function<void(const std::string&)> sink) {
    core_.trace.set_sink(std::move(sink));
  }

 private:
  SimCore core_;
  SimFabric fabric_;
  std::map<std::string, std::unique_ptr<SimHost>> hosts_;
};

}  // namespace kvmend::env::sim
