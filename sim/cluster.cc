#include "sim/cluster.h"

#include <fmt/format.h>

#include <utility>

#include "base/check.h"
#include "sim/arena.h"
#include "transport/tcp/tcp_transport.h"

namespace kvmend::sim {
namespace {

thread_local env::sim::SimWorld* running_here = nullptr;

}  // namespace

// ----------------------------------------------------------------------------------- an instance

Instance::Instance(Cluster& cluster, Node& node, std::uint64_t number)
    : cluster_(cluster),
      node_(node),
      number_(number),
      process_(
          cluster.world().host(node.ip()).start_process(fmt::format("{}/{}", node.ip(), number))),
      pool_(
          fmt::format("{} (life {})", node.ip(), number), cluster.options().pool_bytes,
          [this] { return process_.loop().now(); }, cluster.verdict()),
      network_(process_.env().network, pool_),
      running_since_(cluster.world().now()) {
  EngineOptions options = cluster.options().engine;
  options.host = node.ip();
  options.port = Node::kPort;
  options.insecure = true;
  engine_ = std::make_unique<engine::EngineCore>(
      env::Env{process_.env().loop, process_.env().random, network_}, options,
      transport::tcp::make_tcp_transport, &suspicion_);
  const Status status = engine_->start();
  KVM_CHECK(status.is_ok(), status.to_string());
  engine_->add_observer(this);
}

Instance::~Instance() {
  engine_.reset();
  process_.kill();  // tasks that still wait hold lanes, which need the network
}

void Instance::pause() {
  if (paused_) return;
  paused_ = true;
  process_.pause();
  cluster_.reach_changed();
}

void Instance::resume() {
  if (!paused_) return;
  paused_ = false;
  running_since_ = cluster_.world().now();
  process_.resume();
  cluster_.reach_changed();
}

void Instance::jump_clock(Duration by) {
  running_since_ = cluster_.world().now();
  process_.jump_clock(by);
}

void Instance::on_session_state(const std::string& session_id, std::string_view from,
                                std::string_view to, const Status& cause) {
  if (to == "retired") {
    sessions_.erase(session_id);
  } else {
    sessions_[session_id] = {std::string(to), cluster_.world().now()};
  }
  cluster_.tell_session_state(*this, session_id, from, to, cause);
}

void Instance::on_grant_expired(const memory::Grant& grant) {
  if (on_expired) on_expired(grant);
}

// --------------------------------------------------------------------------------------- a node

Node::Node(Cluster& cluster, std::string ip, std::size_t index)
    : cluster_(cluster), ip_(std::move(ip)), index_(index) {
  cluster.world().add_host(ip_);
}

void Node::start() {
  KVM_CHECK(!instance_);
  if (std::exchange(ran_before_, true)) cluster_.note_restart();
  instance_ = std::make_unique<Instance>(cluster_, *this, cluster_.next_instance());
  for (Part* part : cluster_.parts()) part->on_started(*instance_);
  cluster_.reach_changed();
}

void Node::kill(env::sim::KillStyle style) {
  if (!instance_) return;
  instance_->process().kill(style);
  for (Part* part : cluster_.parts()) part->on_killed(*instance_);
  instance_.reset();
  cluster_.reach_changed();
}

// ------------------------------------------------------------------------------------ the cluster

Cluster::Cluster(std::uint64_t seed, const ClusterOptions& options)
    : seed_(seed),
      options_(options),
      world_(seed, options.world),
      verdict_([this] { return world_.now(); }) {
  Arena::of_this_thread().reset();
  running_here = &world_;
}

Cluster::~Cluster() {
  running_here = nullptr;
}

double Cluster::seconds_of_this_thread() {
  return running_here == nullptr ? 0 : to_seconds(running_here->now().time_since_epoch());
}

Node& Cluster::add_node() {
  const std::size_t index = nodes_.size();
  nodes_.push_back(std::make_unique<Node>(*this, fmt::format("10.0.0.{}", index + 1), index));
  return *nodes_.back();
}

Node* Cluster::find(const std::string& session_id) {
  for (const auto& node : nodes_)
    if (node->session_id() == session_id) return node.get();
  return nullptr;
}

void Cluster::look() {
  ++steps_;
  for (const auto& node : nodes_)
    if (Instance* instance = node->instance(); instance != nullptr && instance->pool().dirty())
      instance->pool().look();
  for (Part* part : parts_) part->on_step();
}

void Cluster::run_for(Duration duration) {
  world_.run_until(
      [this] {
        look();
        return verdict_.broken();
      },
      duration);
}

void Cluster::reach_changed() {
  for (Part* part : parts_) part->on_reach_changed();
}

void Cluster::tell_session_state(Instance& instance, const std::string& session_id,
                                 std::string_view from, std::string_view to, const Status& cause) {
  for (Part* part : parts_) part->on_session_state(instance, session_id, from, to, cause);
}

}  // namespace kvmend::sim
