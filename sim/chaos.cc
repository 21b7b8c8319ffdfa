#include "sim/chaos.h"

#include <algorithm>

#include "sim/content.h"

namespace kvmend::sim {

using namespace std::chrono_literals;
using env::sim::Fault;

Chaos::Chaos(Cluster& cluster, Reach& reach, ChaosOptions options)
    : cluster_(cluster),
      reach_(reach),
      options_(std::move(options)),
      dice_(mix(cluster.seed(), 0xc4a05)),
      elapsed_(options_.from),
      corrupts_(std::ranges::find(options_.menu, Trouble::kCorrupt) != options_.menu.end()) {
  if (options_.menu.empty()) return;
  cluster_.after(options_.from, [this] { schedule_next(); });
}

void Chaos::schedule_next() {
  const Duration gap = dice_.between(options_.mean_gap / 10, options_.mean_gap * 2);
  elapsed_ += gap;
  if (elapsed_ >= options_.until || over_) return;
  cluster_.after(gap, [this] {
    if (over_) return;
    strike();
    schedule_next();
  });
}

void Chaos::strike() {
  const Trouble what = dice_.pick(options_.menu);
  cluster_.world().note("trouble", static_cast<std::uint64_t>(what));
  if (what >= Trouble::kPause) {
    process_fault(what);
  } else {
    link_fault(what);
  }
}

// ------------------------------------------------------------------------------------------ links

void Chaos::put(Node& a, Node& b, const Fault& fault, Duration length) {
  const Reach::Token token = reach_.set_fault(a, b, fault);
  cluster_.after(length, [this, &a, &b, token] { reach_.clear_fault(a, b, token); });
}

void Chaos::link_fault(Trouble what) {
  auto& nodes = cluster_.nodes();
  Node& a = *dice_.pick(nodes);
  Node& b = *dice_.pick(nodes);
  if (&a == &b) return;
  const Duration time = length();
  switch (what) {
    case Trouble::kDelay:
      return put(a, b, {.extra_delay = dice_.skewed(1ms, 300ms), .extra_jitter = 20ms}, time);
    case Trouble::kLoss: {
      const double share = 0.01 * static_cast<double>(1 + dice_.below(30));
      put(a, b, {.drop_probability = share}, time);
      return put(b, a, {.drop_probability = share}, time);
    }
    case Trouble::kSlow:
      return put(a, b, {.bytes_per_second = 1e4 * static_cast<double>(1 + dice_.below(30))}, time);
    case Trouble::kReset:
      cluster_.world().network().reset_connections(a.ip(), b.ip());
      return;
    case Trouble::kOneWay:
      return put(a, b, {.drop_probability = 1}, time);
    case Trouble::kBlackHole:
      put(a, b, {.drop_probability = 1}, time);
      return put(b, a, {.drop_probability = 1}, time);
    case Trouble::kSilentSyn:
      return put(a, b, {.drop_syn_probability = 1}, time);
    case Trouble::kRefuse:
      return put(a, b, {.refuse_connections = true}, time);
    case Trouble::kSmallOnly:
      put(a, b, {.drop_larger_than = 300}, time);
      return put(b, a, {.drop_larger_than = 300}, time);
    case Trouble::kCorrupt:
      return put(a, b, {.corrupt_probability = 0.05}, time);
    default:
      return;
  }
}

// -------------------------------------------------------------------------------------- processes

void Chaos::crash(Node& node) {
  node.kill(dice_.chance(0.5) ? env::sim::KillStyle::kReset : env::sim::KillStyle::kLikeLinux);
  cluster_.after(dice_.skewed(1ms, 3s), [&node] {
    if (node.instance() == nullptr) node.start();
  });
}

void Chaos::process_fault(Trouble what) {
  Node& node = *dice_.pick(cluster_.nodes());
  Instance* instance = node.active();
  if (instance == nullptr) return;
  const Duration time = length();
  const std::uint64_t life = instance->number();
  switch (what) {
    case Trouble::kPause:
      instance->pause();
      cluster_.after(time, [&node, life] {
        if (node.instance() != nullptr && node.instance()->number() == life)
          node.instance()->resume();
      });
      return;
    case Trouble::kClockJump:
      return instance->jump_clock(dice_.skewed(600ms, 5s));
    case Trouble::kCrash:
      return crash(node);
    case Trouble::kHoldAccepts:
      instance->process().hold_accepts(true);
      reach_.set_impaired(node, true);
      cluster_.after(time, [this, &node, life] {
        if (node.instance() != nullptr && node.instance()->number() == life)
          node.instance()->process().hold_accepts(false);
        reach_.set_impaired(node, false);
      });
      return;
    case Trouble::kFewDescriptors:
      instance->process().set_descriptor_limit(instance->process().open_descriptors());
      reach_.set_starved(node, true);
      cluster_.after(time, [this, &node, life] {
        if (node.instance() != nullptr && node.instance()->number() == life)
          node.instance()->process().set_descriptor_limit(SIZE_MAX);
        reach_.set_starved(node, false);
      });
      return;
    default:
      return;
  }
}

void Chaos::end_all() {
  over_ = true;
  reach_.clear_all();
  for (const auto& node : cluster_.nodes()) {
    if (node->instance() == nullptr) {
      node->start();
      continue;
    }
    node->instance()->resume();
    node->instance()->process().hold_accepts(false);
    node->instance()->process().set_descriptor_limit(SIZE_MAX);
  }
  reach_.on_reach_changed();
}

}  // namespace kvmend::sim
