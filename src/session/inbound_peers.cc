#include "session/inbound_peers.h"

#include "base/check.h"
#include "base/config.h"

namespace kvmend::session {

InboundPeer* InboundPeers::find(Incarnation incarnation) {
  const auto at = peers_.find(incarnation);
  return at == peers_.end() ? nullptr : &at->second;
}

InboundPeer* InboundPeers::find_or_add(Incarnation incarnation, Time now) {
  if (InboundPeer* known = find(incarnation)) return known;
  if (peers_.size() >= limit_ && !make_room(now)) return nullptr;
  InboundPeer& peer = peers_[incarnation];
  peer.incarnation = incarnation;
  peer.last_seen = now;
  return &peer;
}

bool InboundPeers::make_room(Time now) {
  if (!strangers_.empty()) {
    forget(strangers_);
    return true;
  }
  if (proven_.empty()) return false;
  const InboundPeer& oldest = peers_.at(proven_.front());
  if (now - oldest.last_seen <= config::kForgetProvenAfter) return false;
  forget(proven_);
  return true;
}

void InboundPeers::forget(std::list<Incarnation>& shelf) {
  const Incarnation gone = shelf.front();
  shelf.pop_front();
  KVM_CHECK(peers_.erase(gone) == 1, "a shelf holds only peers that are known");
}

void InboundPeers::take_down(InboundPeer& peer) {
  if (peer.shelf == Shelf::kOpen) return;
  list_of(peer.shelf).erase(peer.place);
  peer.shelf = Shelf::kOpen;
}

void InboundPeers::lanes_changed(InboundPeer& peer, Time now) {
  if (peer.open()) return take_down(peer);
  if (peer.shelf != Shelf::kOpen) return;
  peer.last_seen = now;
  peer.shelf = peer.proven ? Shelf::kProven : Shelf::kStrangers;
  std::list<Incarnation>& shelf = list_of(peer.shelf);
  peer.place = shelf.insert(shelf.end(), peer.incarnation);
}

void InboundPeers::forget_older(Time before) {
  for (std::list<Incarnation>* shelf : {&strangers_, &proven_})
    while (!shelf->empty() && peers_.at(shelf->front()).last_seen < before) forget(*shelf);
}

}  // namespace kvmend::session
