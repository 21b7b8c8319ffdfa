#include "kv/peer_layouts.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/config.h"
#include "kv/layout.h"

namespace kvmend::kv {
namespace {

/// Pages are moved by the same kind of engine on both sides.
Status check_data_engines(const std::string& here, const std::string& there) {
  if (here.empty() == there.empty()) return {};
  const auto name = [](const std::string& session) {
    return session.empty() ? std::string("kvmend's own engine")
                           : fmt::format("a foreign engine ({})", session);
  };
  return {
      Code::kIncompatible, Origin::kCaller,
      fmt::format("prefill's manager moves pages by {}, decode's by {}: make both with the same "
                  "kind of engine",
                  name(here), name(there))};
}

}  // namespace

void PeerLayouts::make_room() {
  if (peers_.size() < config::kMaxKvPeers) return;
  peers_.erase(std::ranges::min_element(peers_, {},
                                        [](const auto& entry) { return entry.second.last_use; }));
}

const PeerLayout* PeerLayouts::add(const Peer& from, const wire::KvRegister& message) {
  auto at = peers_.find(from.session_id);
  if (at == peers_.end()) {
    make_room();
    at = peers_.try_emplace(from.session_id).first;
  }
  PeerLayout& entry = at->second;
  entry.last_use = ++uses_;
  counters_.peers = peers_.size();
  if (entry.before.is_set() && entry.before == from.incarnation) return nullptr;
  if (entry.peer.incarnation == from.incarnation && entry.registration == message.registration)
    return &entry;
  if (entry.peer.incarnation.is_set() && entry.peer.incarnation != from.incarnation)
    entry.before = entry.peer.incarnation;
  entry.peer = from;
  entry.registration = message.registration;
  entry.plan.reset();
  entry.verdict = check_data_engines(data_session_, message.data_session);
  if (entry.verdict.is_ok()) entry.verdict = check_remote(message.layout);
  if (entry.verdict.is_ok()) {
    auto plan = TransferPlan::prepare(here_, message.layout);
    if (plan) {
      entry.plan = std::make_shared<const TransferPlan>(std::move(*plan));
    } else {
      entry.verdict = std::move(plan).error();
    }
  }
  if (!entry.verdict.is_ok()) ++counters_.registrations_refused;
  return &entry;
}

const PeerLayout* PeerLayouts::find(const Peer& peer) {
  const auto at = peers_.find(peer.session_id);
  if (at == peers_.end() || at->second.peer.incarnation != peer.incarnation) return nullptr;
  at->second.last_use = ++uses_;
  return &at->second;
}

bool PeerLayouts::replaced(const Peer& peer) const {
  const auto at = peers_.find(peer.session_id);
  return at != peers_.end() && at->second.before.is_set() && at->second.before == peer.incarnation;
}

Incarnation PeerLayouts::incarnation_at(const std::string& session_id) const {
  const auto at = peers_.find(session_id);
  return at == peers_.end() ? Incarnation{} : at->second.peer.incarnation;
}

void PeerLayouts::on_incarnation(const std::string& session_id, Incarnation now) {
  const auto at = peers_.find(session_id);
  if (at == peers_.end() || at->second.peer.incarnation == now) return;
  PeerLayout& entry = at->second;
  if (entry.peer.incarnation.is_set()) entry.before = entry.peer.incarnation;
  entry.peer.incarnation = {};
  entry.registration = 0;
  entry.plan.reset();
}

}  // namespace kvmend::kv
