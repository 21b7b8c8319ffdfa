// A simulated cluster: nodes that run real engines on the deterministic world, may be stopped,
// killed and restarted, and whose every step the checkers look at.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine_core.h"
#include "env/sim/world.h"
#include "kvmend/options.h"
#include "sim/dice.h"
#include "sim/pool.h"
#include "sim/violation.h"
#include "sim/watch.h"

namespace kvmend::sim {

class Cluster;
class Node;

/// A session as a checker sees it.
struct SessionView {
  std::string state = "connecting";
  Time since{};  ///< in the world's time
};

/// One life of a node's process, with its memory. Single-threaded, like everything here.
class Instance final : private engine::CoreObserver {
 public:
  Instance(Cluster& cluster, Node& node, std::uint64_t number);
  ~Instance() override;

  [[nodiscard]] Node& node() { return node_; }
  [[nodiscard]] std::uint64_t number() const { return number_; }
  [[nodiscard]] engine::EngineCore& engine() { return *engine_; }
  [[nodiscard]] env::sim::SimProcess& process() { return process_; }
  [[nodiscard]] Pool& pool() { return pool_; }
  [[nodiscard]] Incarnation incarnation() const { return engine_->incarnation(); }
  /// The process's own time.
  [[nodiscard]] Time now() { return process_.loop().now(); }
  [[nodiscard]] bool paused() const { return paused_; }
  /// Since when it has run without a stop, in the world's time.
  [[nodiscard]] Time running_since() const { return running_since_; }
  [[nodiscard]] const std::map<std::string, SessionView>& sessions() const { return sessions_; }
  /// Whether this engine has ever suspected itself: its timeouts are longer then.
  [[nodiscard]] bool suspected() const { return suspicion_.seen; }

  void pause();
  void resume();
  void jump_clock(Duration by);

  /// Drivers get to know of grants that ended by time.
  std::function<void(const memory::Grant&)> on_expired;

 private:
  void on_upper(const std::string&, Incarnation, std::uint32_t, Bytes) override {}
  void on_peer_incarnation(const std::string&, Incarnation, Incarnation) override {}
  void on_session_state(const std::string& session_id, std::string_view from, std::string_view to,
                        const Status& cause) override;
  void on_grant_expired(const memory::Grant& grant) override;

  struct Suspicion final : session::SessionEvents {
    bool seen = false;
    void on_self_suspicion(bool suspected) override { seen = seen || suspected; }
  };

  Cluster& cluster_;
  Node& node_;
  const std::uint64_t number_;
  env::sim::SimProcess& process_;
  Suspicion suspicion_;
  Pool pool_;
  WatchedNetwork network_;
  std::unique_ptr<engine::EngineCore> engine_;
  std::map<std::string, SessionView> sessions_;
  bool paused_ = false;
  Time running_since_{};
};

/// A machine with one address, where processes follow each other.
class Node {
 public:
  Node(Cluster& cluster, std::string ip, std::size_t index);

  [[nodiscard]] const std::string& ip() const { return ip_; }
  [[nodiscard]] std::size_t index() const { return index_; }
  [[nodiscard]] Address address() const { return {ip_, kPort}; }
  [[nodiscard]] std::string session_id() const { return address().to_string(); }
  /// Null while nothing runs there.
  [[nodiscard]] Instance* instance() { return instance_.get(); }
  /// Runs and can act now.
  [[nodiscard]] Instance* active() {
    return instance_ && !instance_->paused() ? instance_.get() : nullptr;
  }

  void start();
  void kill(env::sim::KillStyle style);

  static constexpr std::uint16_t kPort = 7000;

 private:
  Cluster& cluster_;
  const std::string ip_;
  const std::size_t index_;
  std::unique_ptr<Instance> instance_;
  bool ran_before_ = false;
};

/// What the drivers and checkers hook into. All of them outlive the run of the world.
class Part {
 public:
  virtual ~Part() = default;
  virtual void on_started(Instance& /*instance*/) {}
  /// The process has just been killed; the instance goes when this returns.
  virtual void on_killed(Instance& /*instance*/) {}
  /// After every event of the world: cheap looks only.
  virtual void on_step() {}
  /// A link, a stop or a start may have changed what can be reached.
  virtual void on_reach_changed() {}
  virtual void on_session_state(Instance& /*instance*/, const std::string& /*session_id*/,
                                std::string_view /*from*/, std::string_view /*to*/,
                                const Status& /*cause*/) {}
};

struct ClusterOptions {
  EngineOptions engine;
  env::sim::SimOptions world;
  std::size_t pool_bytes = 16'384;
};

class Cluster {
 public:
  Cluster(std::uint64_t seed, const ClusterOptions& options);
  ~Cluster();

  Node& add_node();
  void add_part(Part& part) { parts_.push_back(&part); }
  [[nodiscard]] std::vector<std::unique_ptr<Node>>& nodes() { return nodes_; }
  [[nodiscard]] Node* find(const std::string& session_id);

  [[nodiscard]] env::sim::SimWorld& world() { return world_; }
  [[nodiscard]] Verdict& verdict() { return verdict_; }
  [[nodiscard]] const ClusterOptions& options() const { return options_; }
  [[nodiscard]] std::uint64_t seed() const { return seed_; }
  [[nodiscard]] std::uint64_t steps() const { return steps_; }

  void after(Duration delay, env::Task task) { world_.after(delay, std::move(task)); }
  /// Runs for so long, or until a rule is broken.
  void run_for(Duration duration);
  void reach_changed();
  void tell_session_state(Instance& instance, const std::string& session_id, std::string_view from,
                          std::string_view to, const Status& cause);
  std::vector<Part*>& parts() { return parts_; }
  std::uint64_t next_instance() { return ++instances_; }
  /// Something was given up on purpose while bytes for it may be under way.
  void note_abort() { ++aborts_; }
  void note_restart() { ++restarts_; }
  /// Seconds in the world that this thread runs; 0 outside of one. For log lines.
  [[nodiscard]] static double seconds_of_this_thread();
  [[nodiscard]] std::uint64_t aborts() const { return aborts_; }
  [[nodiscard]] std::uint64_t restarts() const { return restarts_; }

 private:
  void look();

  const std::uint64_t seed_;
  const ClusterOptions options_;
  env::sim::SimWorld world_;
  Verdict verdict_;
  std::vector<Part*> parts_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::uint64_t instances_ = 0;
  std::uint64_t aborts_ = 0;
  std::uint64_t restarts_ = 0;
  std::uint64_t steps_ = 0;
};

}  // namespace kvmend::sim
