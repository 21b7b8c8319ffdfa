#include "session/acceptor.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/config.h"
#include "base/contain.h"
#include "base/log.h"
#include "base/sabotage.h"
#include "session/graveyard.h"

namespace kvmend::session {

using transport::Lane;
using transport::Serving;

namespace {

constexpr std::size_t kMaxTableBacklog = 64U << 10U;
constexpr auto kTablePoll = std::chrono::milliseconds(20);
// So far one epoch may be above the last: initiators count up by one from what they know or are
// told.
constexpr std::uint64_t kMaxEpochStep = 1ULL << 32U;

}  // namespace

Acceptor::Acceptor(env::EventLoop& loop, env::Random& random, const Self& self,
                   const memory::RegionTable& regions, AcceptorEvents& events)
    : loop_(loop),
      random_(random),
      self_(self),
      regions_(regions),
      events_(events),
      sweep_timer_(loop),
      table_timer_(loop) {}

Acceptor::~Acceptor() {
  close_all();
}

void Acceptor::close_all() {
  std::vector<std::unique_ptr<Lane>> all;
  for (auto& [key, entry] : lanes_) all.push_back(std::move(entry.lane));
  lanes_.clear();
  pending_.clear();
  probe_lanes_ = 0;
  probe_hosts_.clear();
  // By address of the peer, never by address of the object: runs must be repeatable.
  std::ranges::sort(all, {}, [](const auto& lane) { return lane->peer(); });
  for (auto& lane : all) bury(loop_, std::move(lane));
  peers_.for_each([&](Peer& peer) {
    peer.control = nullptr;
    peer.data.clear();
    peers_.lanes_changed(peer, loop_.now());
  });
}

void Acceptor::say_goodbye(const std::string& reason) {
  peers_.for_each([&](Peer& peer) {
    if (peer.control == nullptr) return;
    peer.control->send_control(0, wire::encode_control(wire::Goodbye{reason}));
    peer.control->flush();
  });
}

void Acceptor::on_inbound_lane(std::unique_ptr<Lane> lane) {
  const Lane* key = lane.get();
  if (lanes_.size() >= config::kMaxInboundLanes && !shed_oldest_pending()) {
    bury(loop_, std::move(lane));
    return;
  }
  lane->set_observer(this);
  pending_.push_back(key);
  lanes_.emplace(key, LaneEntry{std::move(lane), {}, {}, loop_.now(), 0});
  shed_pending();
  arm_sweep();
}

void Acceptor::shed_pending() {
  // Whoever connects and says nothing must not keep real peers out: the oldest go first.
  while (pending_.size() > config::kMaxPendingHandshakes) shed_oldest_pending();
}

bool Acceptor::shed_oldest_pending() {
  while (!pending_.empty()) {
    const auto at = lanes_.find(pending_.front());
    pending_.pop_front();
    if (at == lanes_.end()) continue;
    bury(loop_, std::move(at->second.lane));
    lanes_.erase(at);
    return true;
  }
  return false;
}

// ----------------------------------------------------------------------------------- handshake

void Acceptor::on_hello(Lane& lane, const wire::Hello& hello) {
  std::erase(pending_, &lane);
  const auto version = wire::negotiate_version(hello.version_min, hello.version_max);
  if (!version)
    return reject(lane, Code::kVersionMismatch,
                  fmt::format("you speak versions {}..{}, this engine {}..{}", hello.version_min,
                              hello.version_max, wire::kVersionMin, wire::kVersionMax));
  if (!accepting_) return reject(lane, Code::kShuttingDown, "this engine is shutting down");
  if (hello.auth.scheme != 0)
    return reject(lane, Code::kAuthFailed,
                  fmt::format("authentication scheme {} is not supported", hello.auth.scheme));
  if (hello.target_incarnation.is_set() && hello.target_incarnation != self_.incarnation &&
      !KVM_SABOTAGE(no_incarnation_check))
    return reject(lane, Code::kPeerRestarted,
                  fmt::format("{} is another process now", self_.session_id));
  wire::HelloAck ack;
  ack.version = *version;
  ack.incarnation = self_.incarnation;
  ack.epoch = hello.epoch;
  const auto entry = lanes_.find(&lane);
  entry->second.peer = hello.incarnation;
  entry->second.kind = hello.kind;
  entry->second.since = loop_.now();
  switch (hello.kind) {
    case wire::LaneKind::kControl:
      return open_epoch(lane, hello, std::move(ack));
    case wire::LaneKind::kData:
      return join_epoch(lane, hello, std::move(ack));
    case wire::LaneKind::kProbe:
      return accept_probe(lane, hello, std::move(ack));
  }
}

void Acceptor::open_epoch(Lane& lane, const wire::Hello& hello, wire::HelloAck ack) {
  Peer* peer = peers_.find_or_add(hello.incarnation, loop_.now());
  if (peer == nullptr)
    return reject(lane, Code::kResourceExhausted,
                  fmt::format("{} peers are known already", peers_.size()));
  if (hello.epoch.value <= peer->max_epoch && !KVM_SABOTAGE(old_hello_accepted))
    return reject(lane, Code::kStaleEpoch,
                  fmt::format("epoch {} is not above {}", hello.epoch.value, peer->max_epoch),
                  peer->max_epoch);
  // Whoever speaks in an initiator's name disturbs it once, but can't use up its numbers.
  if (hello.epoch.value > peer->max_epoch && hello.epoch.value - peer->max_epoch > kMaxEpochStep)
    return reject(lane, Code::kStaleEpoch,
                  fmt::format("epoch {} is too far above {}", hello.epoch.value, peer->max_epoch),
                  peer->max_epoch);
  if (KVM_SABOTAGE(no_epoch_fence)) {
    peer->control = nullptr;
    peer->data.clear();
  }
  drop_epoch(*peer);
  peer->session_id = hello.session_id;
  peer->max_epoch = hello.epoch.value;
  for (std::size_t i = 0; i < peer->token.size(); i += sizeof(std::uint64_t))
    store_le(peer->token.data() + i, random_.next());
  peer->control = &lane;
  peer->last_seen = loop_.now();
  peers_.lanes_changed(*peer, peer->last_seen);
  ack.token = peer->token;
  ack.control_seq = peer->last_seq;
  Serving serving;
  serving.initiator = hello.incarnation;
  serving.control = true;
  lane.accept(std::move(ack), serving);
  send_regions(lane);
  lane.flush();
  if (!hello.session_id.empty()) events_.on_peer_hello(hello.session_id, hello.incarnation);
}

void Acceptor::join_epoch(Lane& lane, const wire::Hello& hello, wire::HelloAck ack) {
  Peer* known = peers_.find(hello.incarnation);
  if (known == nullptr || known->control == nullptr || known->max_epoch != hello.epoch.value ||
      hello.token != known->token)
    return reject(lane, Code::kStaleEpoch, fmt::format("epoch {} is not open", hello.epoch.value),
                  known == nullptr ? 0 : known->max_epoch);
  Peer& peer = *known;
  if (peer.data.size() >= config::kMaxInboundLanesPerPeer)
    return reject(lane, Code::kResourceExhausted,
                  fmt::format("{} lanes are open already", peer.data.size()));
  peer.data.push_back(&lane);
  peer.proven = true;
  Serving serving;
  serving.initiator = hello.incarnation;
  serving.data = true;
  lane.accept(std::move(ack), serving);
}

void Acceptor::accept_probe(Lane& lane, const wire::Hello& hello, wire::HelloAck ack) {
  if (probe_lanes_ >= config::kMaxInboundProbeLanes)
    return reject(lane, Code::kResourceExhausted,
                  fmt::format("{} probes are being answered already", probe_lanes_));
  std::size_t& of_host = probe_hosts_[lane.peer().host];
  if (of_host >= config::kMaxInboundProbeLanesPerHost) {
    // One that asks and doesn't end must not keep the others' questions from being answered.
    return reject(
        lane, Code::kResourceExhausted,
        fmt::format("{} probes from {} are being answered already", of_host, lane.peer().host));
  }
  ++of_host;
  ++probe_lanes_;
  Serving serving;
  serving.initiator = hello.incarnation;
  serving.scratch_bytes = config::kScratchBytes;
  lane.accept(std::move(ack), serving);
  if (!hello.session_id.empty()) events_.on_peer_hello(hello.session_id, hello.incarnation);
}

void Acceptor::reject(Lane& lane, Code code, std::string message, std::uint64_t epoch_seen) {
  wire::HelloReject reject;
  reject.code = code;
  reject.message = std::move(message);
  reject.incarnation = self_.incarnation;
  reject.epoch_seen = Epoch(epoch_seen);
  const auto at = lanes_.find(&lane);
  at->second.peer = {};
  at->second.kind = wire::LaneKind::kData;
  at->second.since = loop_.now();
  pending_.push_back(&lane);  // it closes itself; the sweep removes what lingers
  lane.reject(reject);
}

// -------------------------------------------------------------------------------------- closing

void Acceptor::drop(Lane& lane) {
  const auto at = lanes_.find(&lane);
  if (at == lanes_.end()) return;
  if (at->second.peer.is_set()) {
    if (at->second.kind == wire::LaneKind::kProbe) end_probe(lane);
    if (Peer* peer = peers_.find(at->second.peer)) {
      if (peer->control == &lane) peer->control = nullptr;
      std::erase(peer->data, &lane);
      peers_.lanes_changed(*peer, loop_.now());
    }
  }
  std::erase(pending_, &lane);
  bury(loop_, std::move(at->second.lane));
  lanes_.erase(at);
}

void Acceptor::end_probe(const Lane& lane) {
  --probe_lanes_;
  const auto at = probe_hosts_.find(lane.peer().host);
  if (at != probe_hosts_.end() && --at->second == 0) probe_hosts_.erase(at);
}

void Acceptor::drop_epoch(Peer& peer) {
  const std::vector<Lane*> data = peer.data;
  for (Lane* lane : data) drop(*lane);
  if (peer.control != nullptr) drop(*peer.control);
}

void Acceptor::on_lane_down(Lane& lane, const Status& why) {
  const auto at = lanes_.find(&lane);
  if (at == lanes_.end()) return;
  std::uint64_t held_back = 0;
  if (why.code() == Code::kProtocolError && protocol_log_.allow(loop_.now(), held_back))
    spdlog::warn("closed the connection from {}: {} ({} more since)", lane.peer().to_string(),
                 why.to_string(), held_back);
  const Incarnation owner = at->second.peer;
  const bool of_epoch = at->second.kind != wire::LaneKind::kProbe;
  drop(lane);
  // An epoch lives and dies as a whole.
  if (!owner.is_set() || !of_epoch) return;
  if (Peer* peer = peers_.find(owner)) drop_epoch(*peer);
}

void Acceptor::arm_sweep() {
  if (sweep_timer_.armed()) return;
  sweep_timer_.arm(loop_.now() + std::chrono::seconds(1), [this] {
    if (!contain("sweeping inbound connections", [this] { sweep(); })) arm_sweep();
  });
}

void Acceptor::sweep() {
  const Time now = loop_.now();
  std::vector<Lane*> old;
  for (auto& [key, entry] : lanes_) {
    if (!entry.peer.is_set()) {
      if (now - entry.since > config::kHandshakeDeadline) old.push_back(entry.lane.get());
    } else if (entry.kind == wire::LaneKind::kProbe) {
      if (now - entry.since > config::kProbeLaneLifetime) old.push_back(entry.lane.get());
    }
  }
  std::ranges::sort(old, {}, [](const Lane* lane) { return lane->peer(); });
  for (Lane* lane : old) drop(*lane);
  peers_.for_each([&](Peer& peer) {
    if (!peer.open()) return;
    std::uint64_t progress = peer.control == nullptr ? 0 : peer.control->progress();
    for (const Lane* lane : peer.data) progress += lane->progress();
    if (progress != peer.progress) {
      peer.progress = progress;
      peer.last_seen = now;
    }
    if (now - peer.last_seen > config::kInboundIdle && !KVM_SABOTAGE(inbound_lanes_kept))
      drop_epoch(peer);
  });
  peers_.forget_older(now - config::kForgetPeerAfter);
  if (!lanes_.empty() || peers_.size() > 0) arm_sweep();
}

// -------------------------------------------------------------------------------------- control

void Acceptor::on_control(Lane& lane, std::uint64_t seq, Bytes body) {
  const auto entry = lanes_.find(&lane);
  if (entry == lanes_.end()) return;
  Peer* known = peers_.find(entry->second.peer);
  if (known == nullptr) return;
  Peer& peer = *known;
  if (seq != 0 && seq <= peer.last_seq) {
    lane.send_control_ack(peer.last_seq);  // sent again because our word was lost
    return;
  }
  const auto control = wire::parse_control(body);
  if (!control || (seq != 0 && seq != peer.last_seq + 1)) {
    const Status why = control ? Status(Code::kProtocolError, Origin::kPeer,
                                        fmt::format("message {} after {}", seq, peer.last_seq))
                               : control.error();
    on_lane_down(lane, why);
    return;
  }
  if (seq != 0) {
    peer.last_seq = seq;
    peer.proven = true;
    lane.send_control_ack(seq);
  }
  handle(peer, *control);
}

void Acceptor::handle(Peer& peer, const wire::Control& control) {
  if (const auto* upper = std::get_if<wire::Upper>(&control)) {
    events_.on_upper(peer.session_id, peer.incarnation, upper->kind,
                     std::as_bytes(std::span(upper->body)));
  } else if (const auto* notify = std::get_if<wire::Notify>(&control)) {
    events_.on_notify({notify->name, notify->message});
  } else if (const auto* goodbye = std::get_if<wire::Goodbye>(&control)) {
    events_.on_peer_goodbye(peer.session_id, goodbye->reason);
  } else if (std::holds_alternative<wire::RegionTableRequest>(control)) {
    peer.table_due = true;
    serve_tables();
  }
}

void Acceptor::send_regions(Lane& lane) {
  std::vector<memory::Region> open;
  for (const memory::Region& region : regions_.list())
    if (region.access != Access::kNone) open.push_back(region);
  std::size_t next = 0;
  do {
    wire::RegionTablePart part;
    part.version = regions_.version();
    part.first = next == 0;
    const std::size_t count = std::min(open.size() - next, wire::kMaxRegionsPerMessage);
    for (std::size_t i = 0; i < count; ++i) {
      const memory::Region& region = open[next + i];
      part.added.push_back(
          {region.ref, reinterpret_cast<std::uint64_t>(region.base), region.length, region.access});
    }
    next += count;
    part.more = next < open.size();
    lane.send_control(0, wire::encode_control(std::move(part)));
  } while (next < open.size());
}

void Acceptor::announce_regions() {
  table_changed_ = true;
  serve_tables();
}

// Many registrations or questions in one turn make one table. A peer that doesn't take what it got
// waits for the next: what it doesn't read must not pile up here.
void Acceptor::serve_tables() {
  if (serving_tables_) return;
  loop_.post([this, alive = std::weak_ptr(alive_)] {
    if (alive.expired()) return;
    serving_tables_ = false;
    const bool changed = std::exchange(table_changed_, false);
    bool later = false;
    peers_.for_each([&](Peer& peer) {
      peer.table_due |= changed;
      if (!peer.table_due || peer.control == nullptr) return;
      if (peer.control->control_backlog() > kMaxTableBacklog) {
        later = true;
        return;
      }
      peer.table_due = false;
      send_regions(*peer.control);
      peer.control->flush();
    });
    if (later) table_timer_.arm(loop_.now() + kTablePoll, [this] { serve_tables(); });
  });
  serving_tables_ = true;
}

}  // namespace kvmend::session
