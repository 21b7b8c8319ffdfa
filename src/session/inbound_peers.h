// The initiators that an engine remembers: who has which epoch open, and the fence of those that
// have gone. Bounded: strangers can't crowd out peers that have delivered something.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/time.h"
#include "kvmend/ids.h"
#include "transport/lane.h"
#include "wire/control.h"

namespace kvmend::session {

/// What is known of one initiator, by incarnation.
struct InboundPeer {
  Incarnation incarnation;
  std::string session_id;
  std::uint64_t max_epoch = 0;  ///< the fence: only a higher one is accepted
  wire::Token token{};
  transport::Lane* control = nullptr;
  std::vector<transport::Lane*> data;
  std::uint64_t last_seq = 0;  ///< reliable control messages handed on
  Time last_seen{};
  std::uint64_t progress = 0;  ///< sum over the lanes at the last sweep
  bool proven = false;         ///< a data lane has joined, or a message was handed on
  bool table_due = false;      ///< it is to get our region table

  [[nodiscard]] bool open() const { return control != nullptr || !data.empty(); }

 private:
  friend class InboundPeers;
  enum class Shelf : std::uint8_t { kOpen, kStrangers, kProven };
  Shelf shelf = Shelf::kOpen;
  std::list<Incarnation>::iterator place;  // on its shelf, unless open
};

/// Loop thread. References stay valid until the peer is forgotten.
///
/// At most `limit` peers. A new one takes the place of the stranger that closed first; if there is
/// none, of the proven peer that closed first, when that was more than `kForgetProvenAfter` ago; if
/// there is none either it is refused. So a flood of random incarnations only displaces itself, and
/// what a known peer needs (its epoch and its count of messages) outlives it.
///
/// Forgetting takes the fence with it. That is safe because the lanes of a forgotten peer are
/// closed: a hello from before can open an epoch, but its initiator doesn't listen there any more,
/// and no data lane joins without the token of the answer.
class InboundPeers {
 public:
  explicit InboundPeers(std::size_t limit) : limit_(limit) {}

  [[nodiscard]] InboundPeer* find(Incarnation incarnation);
  /// Known or new; null when everyone in a full table deserves the place more.
  [[nodiscard]] InboundPeer* find_or_add(Incarnation incarnation, Time now);
  /// Call whenever lanes of the peer came or went.
  void lanes_changed(InboundPeer& peer, Time now);
  /// Forgets those that closed before `before`. O(forgotten).
  void forget_older(Time before);

  template <class Visit>
  void for_each(Visit&& visit) {
    for (auto& [incarnation, peer] : peers_) visit(peer);
  }
  [[nodiscard]] std::size_t size() const { return peers_.size(); }

 private:
  using Shelf = InboundPeer::Shelf;
  [[nodiscard]] std::list<Incarnation>& list_of(Shelf shelf) {
    return shelf == Shelf::kProven ? proven_ : strangers_;
  }
  void take_down(InboundPeer& peer);
  void forget(std::list<Incarnation>& shelf);
  [[nodiscard]] bool make_room(Time now);

  const std::size_t limit_;
  std::unordered_map<Incarnation, InboundPeer> peers_;
  std::list<Incarnation> strangers_;  // closed, in the order of closing
  std::list<Incarnation> proven_;
};

}  // namespace kvmend::session
