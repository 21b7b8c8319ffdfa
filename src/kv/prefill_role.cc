#include "kv/prefill_role.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <variant>

#include "base/config.h"
#include "kv/layout.h"

namespace kvmend::kv {
namespace {

/// Whether the metadata fits the pools that decode registered.
Status check_metadata(const wire::KvRoomMetadata& metadata, const TransferPlan& plan) {
  std::size_t total = 0;
  for (const wire::KvPages& pages : metadata.pages) {
    if (pages.component >= plan.components().size())
      return {Code::kOutOfRange, Origin::kPeer,
              fmt::format("component {}: decode registered {}", pages.component,
                          plan.components().size())};
    total += pages.pages.size();
    const ComponentMap& map = plan.components()[pages.component];
    if (metadata.prefix_tokens % map.prefix_unit != 0)
      return {
          Code::kInvalidArgument, Origin::kPeer,
          fmt::format("prefix_tokens {} isn't a multiple of {}, where pages of both sides begin",
                      metadata.prefix_tokens, map.prefix_unit)};
    for (const std::uint32_t page : pages.pages)
      if (page >= map.destination_items)
        return {Code::kOutOfRange, Origin::kPeer,
                fmt::format("page {} of component {}: decode registered {} pages", page,
                            pages.component, map.destination_items)};
  }
  if (metadata.required_destinations > config::kMaxDestinationsPerRoom)
    return {Code::kOutOfRange, Origin::kPeer,
            fmt::format("{} decode engines in one room (at most {})",
                        metadata.required_destinations, config::kMaxDestinationsPerRoom)};
  if (total > config::kMaxPagesPerRoom)
    return {Code::kOutOfRange, Origin::kPeer, fmt::format("{} pages in one room", total)};
  return {};
}

}  // namespace

PrefillRole::PrefillRole(const Surroundings& around)
    : around_(around),
      peers_(around.layout, std::string(around.port.data_session()), around.counters),
      announced_(around.counters),
      notices_(around),
      holds_(around, KvRole::kPrefill),
      park_limits_(around.layout.components[kv_component(around.layout)].items, around.options),
      expiry_timer_(around.port.loop()) {}

// ------------------------------------------------------------------------------- from senders

std::shared_ptr<PrefillRoom> PrefillRole::find(RoomId room) const {
  const auto at = rooms_.find(room);
  return at == rooms_.end() ? nullptr : at->second;
}

std::shared_ptr<PrefillRoom> PrefillRole::find(const RoomHandle& handle) const {
  std::shared_ptr<PrefillRoom> room = find(handle.room());
  return room && room->handle().get() == &handle ? room : nullptr;
}

void PrefillRole::attach(const std::shared_ptr<RoomHandle>& handle, std::string only_decode) {
  const RoomId id = handle->room();
  if (rooms_.contains(id) || rooms_.size() >= config::kMaxRooms) {
    ++around_.counters.rooms_refused;
    if (rooms_.contains(id))
      return handle->fail({Code::kAlreadyExists, Origin::kCaller,
                           fmt::format("room {} has a sender already", id.value)},
                          around_.now());
    return handle->fail({Code::kResourceExhausted, Origin::kLocal,
                         fmt::format("{} rooms are live (the maximum)", rooms_.size())},
                        around_.now());
  }
  if (Status full = holds_.admits(); !full.is_ok()) {
    ++around_.counters.rooms_refused;
    return handle->fail(std::move(full), around_.now());
  }
  const auto room = std::make_shared<PrefillRoom>(around_, static_cast<PrefillRoom::Host&>(*this),
                                                  handle, std::move(only_decode));
  rooms_.emplace(id, room);
  around_.count_live(KvRole::kPrefill, rooms_.size());
  room->start();
  std::optional<Status> aborted;
  for (Announcement& waiting : announced_.take(id)) {
    if (!waiting.aborted) {
      announce(std::move(waiting));
    } else if (!aborted) {
      aborted = std::move(waiting.aborted);
    }
  }
  arm_expiry();
  if (aborted) room->fail(std::move(*aborted));  // the others hear of it
}

void PrefillRole::init(const RoomHandle& handle, std::uint32_t num_pages,
                       std::optional<std::uint32_t> aux_index) {
  if (const auto room = find(handle)) room->init(num_pages, aux_index);
}

void PrefillRole::send(const RoomHandle& handle, SourceChunk chunk) {
  if (const auto room = find(handle)) room->send(std::move(chunk));
}

void PrefillRole::on_gate_open(const RoomHandle& handle) {
  if (const auto room = find(handle)) room->on_gate_open();
}

void PrefillRole::abort(const RoomHandle& handle, Status why) {
  if (const auto room = find(handle)) room->fail(std::move(why));
}

void PrefillRole::on_room_failing(PrefillRoom& /*room*/, const wire::KvRoomAbort& message,
                                  const Peer& decode) {
  notices_.send({message.room, decode.incarnation, message.attempt}, message, {decode}, nullptr);
}

void PrefillRole::on_room_draining(PrefillRoom& room, const std::vector<Peer>& peers) {
  room.handle()->hold_pages();
  holds_.hold(room.keys().front(), room.handle(), room.source_pages(), peers, room.deadline());
}

void PrefillRole::on_drained(PrefillRoom& room, const Peer& peer) {
  holds_.on_drained(room.keys().front(), peer);
}

void PrefillRole::on_room_over(PrefillRoom& room, const Status& result) {
  const std::vector<Peer> undrained = room.undrained();
  for (const RoomKey& key : room.keys())
    finished_.add(
        key, {.result = result, .undrained = std::ranges::any_of(undrained, [&](const Peer& peer) {
                                  return peer.incarnation == key.decode;
                                })});
  if (!undrained.empty() && !room.draining()) on_room_draining(room, undrained);
  rooms_.erase(room.handle()->room());  // the caller holds a reference
  around_.count_over(KvRole::kPrefill, *room.handle(), result, rooms_.size());
}

// ------------------------------------------------------------------------------- from decode

void PrefillRole::on_message(const Peer& from, wire::KvMessage message) {
  std::visit([&](auto& one) { handle(from, std::move(one)); }, message);
}

// Anybody may speak in an engine's name. Rooms of the process that we know end when another one is
// seen to stand there, not by a word.
void PrefillRole::handle(const Peer& from, wire::KvRegister message) {
  const Incarnation known = peers_.incarnation_at(from.session_id);
  const Incarnation proven = around_.port.proven_incarnation(from.address);
  const bool somebody_else = (known.is_set() && known != from.incarnation) ||
                             (proven.is_set() && proven != from.incarnation);
  if (!somebody_else || proven == from.incarnation || known == from.incarnation ||
      peers_.replaced(from))
    return register_peer(from, message);
  if (claims_.size() >= config::kMaxKvClaims && !claims_.contains(from.session_id))
    claims_.erase(claims_.begin());
  claims_.insert_or_assign(from.session_id, Claim{from, std::move(message)});
  around_.port.on_peer_registered(from.address, from.incarnation);
}

void PrefillRole::register_peer(const Peer& from, const wire::KvRegister& message) {
  const Incarnation known = peers_.incarnation_at(from.session_id);
  const PeerLayout* earlier = peers_.find(from);
  const bool fresh = earlier == nullptr || earlier->registration != message.registration;
  const PeerLayout* entry = peers_.add(from, message);
  Status verdict(
      Code::kPeerRestarted, Origin::kPeer,
      fmt::format("peer restarted: another process has registered at {} since", from.session_id));
  if (entry != nullptr) {
    if (known.is_set() && known != from.incarnation)
      on_peer_incarnation(from.session_id, from.incarnation);
    around_.port.on_data_session(from.address, from.incarnation, message.data_session);
    // Decode repeats itself until it is answered: only the first time is news. A session that fails
    // would be trusted again by every repetition (kvmend-sim --scenario kv_storm --seed 553).
    if (fresh) {
      holds_.on_registered_anew(from.session_id);
      around_.port.on_peer_registered(from.address, from.incarnation);
    }
    verdict = entry->verdict;
  }
  wire::KvRegisterReply reply{.registration = message.registration, .code = verdict.code()};
  if (verdict.is_ok()) {
    for (const ComponentMap& map : entry->plan->components())
      reply.coverage.push_back(map.coverage);
  } else {
    reply.detail = reason_text(verdict);
  }
  static_cast<void>(around_.send(from, reply));
}

void PrefillRole::handle(const Peer& from, wire::KvRoomMetadata message) {
  if (const FinishedRoom* over =
          finished_.find({message.room, from.incarnation, message.attempt})) {
    ++around_.counters.late_messages;
    static_cast<void>(
        around_.send(from, status_message(message.room, message.attempt, over->result)));
    return;
  }
  const PeerLayout* peer = peers_.find(from);
  if (peer == nullptr) {  // a manager before this one knew it, or it was forgotten
    static_cast<void>(around_.send(
        from, wire::KvRegisterReply{.registration = 0,
                                    .code = Code::kUnavailable,
                                    .detail = "not registered here (any more): register again"}));
    return;
  }
  if (!peer->verdict.is_ok()) return refuse(from, message, peer->verdict);
  if (const Status bad = check_metadata(message, *peer->plan); !bad.is_ok())
    return refuse(from, message, bad);
  const Time deadline = saturating_add(around_.now(), message.expires_in);
  announce(
      {.peer = from, .plan = peer->plan, .metadata = std::move(message), .deadline = deadline});
}

void PrefillRole::announce(Announcement announcement) {
  // Kept for the answer: the announcement is moved away.
  const Peer peer = announcement.peer;
  wire::KvRoomMetadata head{.room = announcement.metadata.room,
                            .attempt = announcement.metadata.attempt,
                            .grant = announcement.metadata.grant};
  auto room = find(head.room);
  if (room && room->serves_other_attempt(peer, head.attempt)) {
    room->supersede(peer);  // decode has one live attempt: the earlier one is over there
    room = nullptr;
  }
  if (room) {
    if (!room->serves(peer, head.attempt))
      if (const Status refused = room->announce(std::move(announcement)); !refused.is_ok())
        return refuse(peer, head, refused);
    return answer(peer, head, room->handle()->status());
  }
  if (announced_.find(head.room, peer, head.attempt) != nullptr)
    return answer(peer, head, KvStatus::kBootstrapping);
  const Time expires =
      std::min(announcement.deadline, saturating_add(around_.now(), around_.options.announced_ttl));
  const Status added = announced_.add(std::move(announcement), expires);
  if (!added.is_ok()) return refuse(peer, head, added);
  arm_expiry();
  answer(peer, head, KvStatus::kBootstrapping);
}

void PrefillRole::refuse(const Peer& to, const wire::KvRoomMetadata& metadata, const Status& why) {
  ++around_.counters.rooms_refused;
  wire::KvRoomStatus message = status_message(metadata.room, metadata.attempt, why);
  message.grant = metadata.grant;
  static_cast<void>(around_.send(to, message));
}

void PrefillRole::answer(const Peer& to, const wire::KvRoomMetadata& metadata, KvStatus status) {
  if (is_terminal(status)) return;  // the room has spoken for itself
  static_cast<void>(
      around_.send(to, wire::KvRoomStatus{.room = metadata.room,
                                          .attempt = metadata.attempt,
                                          .status = static_cast<std::uint32_t>(status),
                                          .grant = metadata.grant}));
}

void PrefillRole::handle(const Peer& from, const wire::KvRoomStatus& message) {
  if (const auto room = find(message.room)) return room->on_status(from, message);
  if (finished_.find({message.room, from.incarnation, message.attempt}) != nullptr) {
    ++around_.counters.late_messages;
  } else {
    ++around_.counters.unknown_messages;
  }
}

void PrefillRole::handle(const Peer& from, const wire::KvRoomAbort& message) {
  const auto room = find(message.room);
  if (room && room->serves(from, message.attempt)) return room->on_abort(from, message);
  const Status why = reported_by(from.session_id, message.code, message.reason);
  bool undrained = false;
  if (announced_.mark_aborted(message.room, from, message.attempt, why)) {
    // Kept for the sender that will come.
  } else if (const FinishedRoom* over =
                 finished_.find({message.room, from.incarnation, message.attempt})) {
    ++around_.counters.late_messages;
    undrained = over->undrained;
  } else {
    ++around_.counters.unknown_messages;
    undrained = !around_.port.landing().failed_writes_rest;  // a manager before this one may know
  }
  // No write of that attempt is waited for here.
  static_cast<void>(
      around_.send(from, wire::KvRoomAbortAck{.room = message.room,
                                              .attempt = message.attempt,
                                              .rank = rank_number(around_.layout.rank),
                                              .undrained = undrained}));
}

void PrefillRole::handle(const Peer& from, const wire::KvRoomAbortAck& message) {
  if (!notices_.on_ack({message.room, from.incarnation, message.attempt}, from))
    ++around_.counters.unknown_messages;
}

template <class Other>
void PrefillRole::handle(const Peer& /*from*/, const Other& /*message*/) {
  ++around_.counters.unknown_messages;  // what isn't for prefill
}

void PrefillRole::on_peer_incarnation(const std::string& session_id, Incarnation now) {
  peers_.on_incarnation(session_id, now);
  announced_.on_incarnation(session_id, now);
  notices_.on_incarnation(session_id, now);
  holds_.on_incarnation(session_id, now);
  std::vector<std::shared_ptr<PrefillRoom>> rooms;
  for (const auto& [id, room] : rooms_) rooms.push_back(room);
  for (const auto& room : rooms) room->on_peer_incarnation(session_id, now);
  auto claim = claims_.extract(session_id);
  if (!claim.empty() && (!now.is_set() || now == claim.mapped().from.incarnation))
    handle(claim.mapped().from, std::move(claim.mapped().message));
}

Incarnation PrefillRole::known_incarnation(const std::string& session_id) const {
  return peers_.incarnation_at(session_id);
}

void PrefillRole::on_peer_died(const std::string& session_id, Incarnation dead) {
  // A successor may have registered already: then all of the dead one has been seen to.
  if (known_incarnation(session_id) == dead) on_peer_incarnation(session_id, {});
}

void PrefillRole::arm_expiry() {
  const Time next = announced_.next_expiry();
  if (next == kForever) return expiry_timer_.cancel();
  if (expiry_timer_.armed() && expiry_timer_.when() <= next) return;
  expiry_timer_.arm(next, [this] { expire_announced(); });
}

void PrefillRole::expire_announced() {
  for (const Announcement& gone : announced_.expire(around_.now())) {
    if (gone.aborted) continue;
    const wire::KvRoomMetadata& metadata = gone.metadata;
    const Status why(Code::kDeadlineExceeded, Origin::kPeer,
                     fmt::format("room {}: prefill never opened it", metadata.room.value));
    finished_.add({metadata.room, gone.peer.incarnation, metadata.attempt}, {.result = why});
    static_cast<void>(
        around_.send(gone.peer, status_message(metadata.room, metadata.attempt, why)));
  }
  arm_expiry();
}

void PrefillRole::close(const Status& why) {
  std::vector<std::shared_ptr<PrefillRoom>> rooms;
  for (const auto& [id, room] : rooms_) rooms.push_back(room);
  for (const auto& room : rooms) room->fail(why);
  for (const Announcement& gone : announced_.take_all())
    if (!gone.aborted) refuse(gone.peer, gone.metadata, why);
  for (const auto& [session_id, entry] : peers_.all())
    if (entry.peer.incarnation.is_set())
      static_cast<void>(around_.send(
          entry.peer,
          wire::KvRegisterReply{
              .registration = 0, .code = Code::kUnavailable, .detail = reason_text(why)}));
  expiry_timer_.cancel();
  notices_.clear();
}

void PrefillRole::finish_close() {
  std::vector<std::shared_ptr<PrefillRoom>> rooms;
  for (const auto& [id, room] : rooms_) rooms.push_back(room);
  for (const auto& room : rooms) room->give_up_writes();
  holds_.close();
}

}  // namespace kvmend::kv
