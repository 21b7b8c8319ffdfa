#include "sim/monitor.h"

#include <fmt/format.h>

#include <algorithm>

#include "health/probe_schedule.h"
#include "session/health_options.h"

namespace kvmend::sim {
namespace {

using namespace std::chrono_literals;

constexpr Duration kLookEvery = 50ms;
// For the round trips of the probe's stages, and for the granularity of looking.
constexpr Duration kSlack = 150ms;

}  // namespace

Monitor::Monitor(Cluster& cluster, Reach& reach)
    : cluster_(cluster),
      reach_(reach),
      health_(session::to_health_options(cluster.options().engine.recovery)) {
  cluster.add_part(*this);
  cluster.after(kLookEvery, [this] { look(); });
}

void Monitor::look() {
  if (over_) return;
  for (const auto& node : cluster_.nodes())
    if (Instance* instance = node->active()) {
      check_recovery(*instance);
      check_bounds(*instance);
    }
  cluster_.after(kLookEvery, [this] { look(); });
}

Duration Monitor::bound(Instance& instance, bool demanded) const {
  const auto failed = std::ranges::count_if(
      instance.sessions(), [](const auto& entry) { return entry.second.state == "failed"; });
  health::HealthOptions options = health_;
  if (instance.suspected()) options.probe_deadline *= health_.self_stretch_factor;
  return health::recovery_bound(static_cast<std::size_t>(failed), options, demanded) + kSlack;
}

void Monitor::check_recovery(Instance& instance) {
  const Time now = cluster_.world().now();
  for (const auto& [id, view] : instance.sessions()) {
    Node* peer = cluster_.find(id);
    const auto key = std::pair(instance.number(), id);
    session::Session* session = instance.engine().sessions().find(id);
    if (view.state != "failed" || peer == nullptr || session == nullptr) {
      demand_since_.erase(key);
      continue;
    }
    const Time clean = reach_.clean_since(instance.node(), *peer);
    if (clean == kForever) continue;
    const Time from = std::max({clean, view.since, instance.running_since()});
    slowest_ = std::max(slowest_, now - from);
    const auto refuse = [&](Duration limit, const char* how) {
      cluster_.verdict().report(
          4, fmt::format("{}: session {} is failed {:.3f} s after the peer became reachable; the "
                         "bound {} is {:.3f} s ({})",
                         instance.node().ip(), id, to_seconds(now - from), how, to_seconds(limit),
                         session->health().last_cause().to_string()));
    };
    if (const Duration limit = bound(instance, false); now - from > limit)
      return refuse(limit, "without demand");
    if (session->transfers() == 0) {
      demand_since_.erase(key);
      continue;
    }
    const Time since = std::max(from, demand_since_.emplace(key, now).first->second);
    if (const Duration limit = bound(instance, true); now - since > limit)
      return refuse(limit, "with demand");
  }
}

void Monitor::on_session_state(Instance& instance, const std::string& session_id,
                               std::string_view from, std::string_view to, const Status& cause) {
  static_cast<void>(cause);
  if (from != "failed" || to != "probing") return;
  Node* peer = cluster_.find(session_id);
  session::Session* session = instance.engine().sessions().find(session_id);
  if (peer == nullptr || session == nullptr) return;
  // The first registration of a process that is there shows that it lives, whatever our way to it.
  const Incarnation life = session->health().peer();
  if (session->health().lifted_by() == health::LiftedBy::kNewRegistration &&
      peer->instance() != nullptr && peer->instance()->incarnation() == life &&
      registrations_.emplace(instance.number(), life).second)
    return;
  // A probe must have reached the peer and come back since it began.
  const Duration longest =
      health_.probe_deadline * (instance.suspected() ? health_.self_stretch_factor : 1) + kSlack;
  const Time now = cluster_.world().now();
  const Time possible = std::min(reach_.last_possible(instance.node(), *peer),
                                 reach_.last_connectable(instance.node(), *peer));
  if (now - possible > longest)
    cluster_.verdict().report(
        4, fmt::format("{}: session {} left `failed`, but the peer has been out of reach for "
                       "{:.3f} s",
                       instance.node().ip(), session_id, to_seconds(now - possible)));
}

void Monitor::check_bounds(Instance& instance) {
  // Per peer: one epoch each way, dying ones, and overlapping probes each way.
  const std::size_t peers = cluster_.nodes().size() + 1;
  const auto lanes = static_cast<std::size_t>(cluster_.options().engine.tcp.data_lanes) + 1;
  const std::size_t limit =
      16 + peers * (4 * lanes + 4 * std::size_t{health_.max_overlapping_probes} + 8);
  const std::size_t open = instance.process().open_descriptors();
  if (open > limit)
    cluster_.verdict().report(5, fmt::format("{}: {} descriptors are open, at most {} expected",
                                             instance.node().ip(), open, limit));
}

void Monitor::check_idle() {
  for (const auto& node : cluster_.nodes()) {
    Instance* instance = node->active();
    if (instance == nullptr) continue;
    const EngineStats stats = instance->engine().stats();
    const auto need_zero = [&](std::uint64_t value, const char* what) {
      if (value != 0)
        cluster_.verdict().report(
            5, fmt::format("{}: {} {} left after everything had ended", node->ip(), value, what));
    };
    need_zero(stats.grants, "grants");
    need_zero(stats.inbound_lanes, "inbound lanes");
    need_zero(instance->engine().sessions().size(), "sessions");
    need_zero(instance->process().open_descriptors() - 1, "descriptors (beyond the listener)");
    need_zero(instance->pool().permits(), "permits of the application (a fault of the simulation)");
  }
}

}  // namespace kvmend::sim
