#include "sim/reach.h"

namespace kvmend::sim {
namespace {

// A direction that lets nothing useful through.
bool is_dead(const env::sim::Fault* fault) {
  return fault != nullptr && (fault->drop_probability >= 1 || fault->drop_larger_than > 0);
}

// Of packets that open a connection, or that answer one.
bool drops_openings(const env::sim::Fault* fault) {
  return fault != nullptr && fault->drop_syn_probability >= 1;
}

bool refuses(const env::sim::Fault* fault) {
  return fault != nullptr && fault->refuse_connections;
}

}  // namespace

Reach::Reach(Cluster& cluster) : cluster_(cluster) {
  cluster.add_part(*this);
}

Reach::Token Reach::set_fault(Node& a, Node& b, const env::sim::Fault& fault) {
  cluster_.world().network().set_fault(a.ip(), b.ip(), fault);
  links_[{a.index(), b.index()}] = {fault, ++last_token_};
  on_reach_changed();
  return last_token_;
}

void Reach::clear_fault(Node& a, Node& b, Token token) {
  const auto at = links_.find({a.index(), b.index()});
  if (at == links_.end() || at->second.token != token) return;
  links_.erase(at);
  cluster_.world().network().clear_fault(a.ip(), b.ip());
  on_reach_changed();
}

void Reach::clear_all() {
  links_.clear();
  impaired_.clear();
  starved_.clear();
  cluster_.world().network().clear_all_faults();
  on_reach_changed();
}

void Reach::set_impaired(Node& node, bool on) {
  impaired_[node.index()] = on;
  on_reach_changed();
}

void Reach::set_starved(Node& node, bool on) {
  starved_[node.index()] = on;
  on_reach_changed();
}

const env::sim::Fault* Reach::fault_of(std::size_t a, std::size_t b) const {
  const auto at = links_.find({a, b});
  return at == links_.end() ? nullptr : &at->second.fault;
}

void Reach::on_reach_changed() {
  const Time now = cluster_.world().now();
  for (const auto& a : cluster_.nodes())
    for (const auto& b : cluster_.nodes()) {
      if (a == b) continue;
      const Key key{a->index(), b->index()};
      const env::sim::Fault* there = fault_of(key.first, key.second);
      const env::sim::Fault* back = fault_of(key.second, key.first);
      const bool run = a->active() != nullptr && b->active() != nullptr;
      const bool held = impaired_[b->index()] || starved_[b->index()] || starved_[a->index()];
      const bool clean = run && !held && there == nullptr && back == nullptr;
      const bool passes = !is_dead(there) && !is_dead(back);
      const bool possible = run && passes;
      // What the other direction refuses are the other side's attempts.
      const bool connectable = a->active() != nullptr && b->instance() != nullptr && passes &&
                               !drops_openings(there) && !drops_openings(back) && !refuses(there);
      Pair& pair = pairs_[key];
      if (clean && !pair.clean) pair.clean_since = now;
      if (!possible && pair.possible) pair.last_possible = now;
      if (!connectable && pair.connectable) pair.last_connectable = now;
      pair.clean = clean;
      pair.possible = possible;
      pair.connectable = connectable;
    }
}

Time Reach::clean_since(Node& a, Node& b) const {
  const auto at = pairs_.find({a.index(), b.index()});
  return at == pairs_.end() || !at->second.clean ? kForever : at->second.clean_since;
}

Time Reach::last_possible(Node& a, Node& b) const {
  const auto at = pairs_.find({a.index(), b.index()});
  if (at == pairs_.end() || at->second.possible) return cluster_.world().now();
  return at->second.last_possible;
}

Time Reach::last_connectable(Node& a, Node& b) const {
  const auto at = pairs_.find({a.index(), b.index()});
  if (at == pairs_.end() || at->second.connectable) return cluster_.world().now();
  return at->second.last_connectable;
}

}  // namespace kvmend::sim
