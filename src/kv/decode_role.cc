#include "kv/decode_role.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <variant>

#include "base/address.h"
#include "base/config.h"
#include "base/try.h"

namespace kvmend::kv {

DecodeRole::DecodeRole(const Surroundings& around, std::uint64_t seed)
    : around_(around),
      next_attempt_(static_cast<std::uint32_t>(seed)),
      registrations_(around, static_cast<Registrations::Host&>(*this), (seed >> 1) + 1),
      notices_(around),
      holds_(around, KvRole::kDecode),
      coverage_sums_(around.layout) {}

RoomKey DecodeRole::key(RoomId room, std::uint32_t attempt) const {
  return {room, around_.port.incarnation(), attempt};
}

// ------------------------------------------------------------------------------- from receivers

std::shared_ptr<DecodeRoom> DecodeRole::find(const RoomHandle& handle) const {
  const auto at = rooms_.find(handle.room());
  return at != rooms_.end() && at->second->handle().get() == &handle ? at->second : nullptr;
}

std::shared_ptr<DecodeRoom> DecodeRole::find(RoomId room, std::uint32_t attempt) const {
  const auto at = rooms_.find(room);
  return at != rooms_.end() && at->second->attempt() == attempt ? at->second : nullptr;
}

std::vector<std::shared_ptr<DecodeRoom>> DecodeRole::all_rooms() const {
  std::vector<std::shared_ptr<DecodeRoom>> out;
  out.reserve(rooms_.size());
  for (const auto& [id, room] : rooms_) out.push_back(room);
  return out;
}

Result<std::vector<Source>> DecodeRole::check_attach(RoomId room,
                                                     const std::vector<KvSource>& prefill) const {
  if (rooms_.contains(room))
    return fail(Code::kAlreadyExists, Origin::kCaller,
                fmt::format("room {} has a receiver already", room.value));
  if (rooms_.size() >= config::kMaxRooms)
    return fail(Code::kResourceExhausted, Origin::kLocal,
                fmt::format("{} rooms are live (the maximum)", rooms_.size()));
  if (prefill.empty() || prefill.size() > config::kMaxWritersPerRoom)
    return fail(
        Code::kInvalidArgument, Origin::kCaller,
        fmt::format("{} prefill engines (1 to {})", prefill.size(), config::kMaxWritersPerRoom));
  std::vector<Source> sources;
  for (const KvSource& one : prefill) {
    KVM_ASSIGN_OR_RETURN(const Address address, parse_address(one.session));
    for (const Source& other : sources)
      if (other.peer.address == address)
        return fail(Code::kInvalidArgument, Origin::kCaller,
                    fmt::format("prefill {} is given twice", one.session));
    if (one.destinations == 0 || one.destinations > config::kMaxDestinationsPerRoom)
      return fail(Code::kInvalidArgument, Origin::kCaller,
                  fmt::format("prefill {} with {} destinations (1 to {})", one.session,
                              one.destinations, config::kMaxDestinationsPerRoom));
    sources.push_back({{address.to_string(), address, {}}, one.destinations, one.dummy});
  }
  if (std::ranges::all_of(sources, &Source::dummy))
    return fail(Code::kInvalidArgument, Origin::kCaller, "every prefill engine is a dummy");
  return sources;
}

void DecodeRole::attach(const std::shared_ptr<RoomHandle>& handle,
                        const std::vector<KvSource>& prefill) {
  auto sources = check_attach(handle->room(), prefill);
  if (Status full = holds_.admits(); !full.is_ok()) sources = std::unexpected(std::move(full));
  if (!sources) {
    ++around_.counters.rooms_refused;
    return handle->fail(std::move(sources).error(), around_.now());
  }
  if (next_attempt_ == 0) ++next_attempt_;
  const auto room = std::make_shared<DecodeRoom>(around_, static_cast<DecodeRoom::Host&>(*this),
                                                 handle, next_attempt_++, *sources);
  rooms_.emplace(handle->room(), room);
  around_.count_live(KvRole::kDecode, rooms_.size());
  room->start();
  std::vector<Registration> known;
  Status failed;
  for (const Source& source : *sources) {
    if (const auto blacklisted = around_.port.blacklisted(source.peer.address);
        blacklisted && blacklisted->refuses)
      failed = blacklisted->reason;
    auto registration = registrations_.want(source.peer);
    if (!registration) {
      failed = std::move(registration).error();  // the others are released when the room ends
      continue;
    }
    using State = Registration::State;
    if ((*registration)->state == State::kAccepted || (*registration)->state == State::kRefused)
      known.push_back(**registration);
  }
  if (!failed.is_ok()) return room->fail(std::move(failed));
  for (const Registration& registration : known) room->on_registration(registration);
}

void DecodeRole::init(const RoomHandle& handle) {
  if (const auto room = find(handle)) room->init();
}

void DecodeRole::set_pages(const RoomHandle& handle, std::vector<wire::KvPages> pages,
                           std::uint64_t prefix_tokens) {
  if (const auto room = find(handle)) room->set_pages(std::move(pages), prefix_tokens);
}

void DecodeRole::abort(const RoomHandle& handle, Status why) {
  if (const auto room = find(handle)) room->fail(std::move(why));
}

void DecodeRole::on_room_over(DecodeRoom& room, const Status& result,
                              const std::vector<Peer>& tell) {
  const std::shared_ptr<RoomHandle>& handle = room.handle();
  const RoomKey over = key(handle->room(), room.attempt());
  if (!result.is_ok()) {
    const std::vector<Peer> writers = room.possible_writers();
    if (!around_.port.landing().grants_are_checked && !writers.empty())
      holds_.hold(over, handle, room.kv_pages(), writers, room.deadline());
    notices_.send(over,
                  {.room = over.room,
                   .attempt = over.attempt,
                   .code = result.code(),
                   .reason = reason_text(result),
                   .rank = rank_number(around_.layout.rank)},
                  tell, handle);
  }
  finished_.add(over, {result});
  for (const std::string& session_id : room.writer_sessions()) registrations_.release(session_id);
  rooms_.erase(handle->room());  // the caller holds a reference
  around_.count_over(KvRole::kDecode, *handle, result, rooms_.size());
}

// ------------------------------------------------------------------------------- from prefill

void DecodeRole::on_registration(const Registration& registration) {
  for (const auto& room : all_rooms()) room->on_registration(registration);
}

void DecodeRole::on_registration_lost(const std::string& session_id) {
  for (const auto& room : all_rooms()) room->on_registration_lost(session_id);
}

void DecodeRole::on_message(const Peer& from, wire::KvMessage message) {
  std::visit([&](const auto& one) { handle(from, one); }, message);
}

void DecodeRole::handle(const Peer& from, const wire::KvRegister& message) {
  static_cast<void>(around_.send(
      from, wire::KvRegisterReply{
                .registration = message.registration,
                .code = Code::kUnavailable,
                .detail = fmt::format("{} is a decode engine", around_.port.session_id())}));
}

void DecodeRole::handle(const Peer& from, const wire::KvRegisterReply& message) {
  registrations_.on_reply(from, message);
}

void DecodeRole::handle(const Peer& from, const wire::KvRoomMetadata& message) {
  ++around_.counters.unknown_messages;
  static_cast<void>(around_.send(
      from, status_message(message.room, message.attempt,
                           {Code::kUnavailable, Origin::kPeer,
                            fmt::format("{} is a decode engine", around_.port.session_id())})));
}

void DecodeRole::handle(const Peer& from, const wire::KvRoomDone& message) {
  if (const auto room = find(message.room, message.attempt)) return room->on_done(from, message);
  // A repeated word: answered, and nothing is touched (I9).
  const FinishedRoom* over = finished_.find(key(message.room, message.attempt));
  ++(over != nullptr ? around_.counters.late_messages : around_.counters.unknown_messages);
  static_cast<void>(around_.send(
      from, status_message(message.room, message.attempt,
                           over != nullptr ? over->result
                                           : Status(Code::kNotFound, Origin::kPeer,
                                                    fmt::format("room {} is unknown here",
                                                                message.room.value)))));
}

void DecodeRole::handle(const Peer& from, const wire::KvRoomStatus& message) {
  if (const auto room = find(message.room, message.attempt)) return room->on_status(from, message);
  ++(finished_.find(key(message.room, message.attempt)) != nullptr
         ? around_.counters.late_messages
         : around_.counters.unknown_messages);
}

void DecodeRole::handle(const Peer& from, const wire::KvRoomAbort& message) {
  bool undrained = false;
  if (const auto room = find(message.room, message.attempt)) {
    room->on_abort(from, message);
  } else {
    // From decode to a prefill that is one no more: its writes' ends aren't known here.
    undrained = !around_.port.landing().failed_writes_rest;
    ++(finished_.find(key(message.room, message.attempt)) != nullptr
           ? around_.counters.late_messages
           : around_.counters.unknown_messages);
  }
  static_cast<void>(
      around_.send(from, wire::KvRoomAbortAck{.room = message.room,
                                              .attempt = message.attempt,
                                              .rank = rank_number(around_.layout.rank),
                                              .undrained = undrained}));
}

void DecodeRole::handle(const Peer& from, const wire::KvRoomAbortAck& message) {
  const RoomKey over = key(message.room, message.attempt);
  if (!message.undrained) holds_.on_drained(over, from);
  if (!notices_.on_ack(over, from)) ++around_.counters.unknown_messages;
}

void DecodeRole::on_peer_incarnation(const std::string& session_id, Incarnation now) {
  registrations_.on_incarnation(session_id, now);
  notices_.on_incarnation(session_id, now);
  holds_.on_incarnation(session_id, now);
  for (const auto& room : all_rooms()) room->on_peer_incarnation(session_id, now);
}

Incarnation DecodeRole::known_incarnation(const std::string& session_id) const {
  const Registration* known = registrations_.find(session_id);
  return known == nullptr ? Incarnation{} : known->peer.incarnation;
}

void DecodeRole::on_peer_died(const std::string& session_id, Incarnation dead) {
  if (known_incarnation(session_id) == dead) on_peer_incarnation(session_id, {});
}

void DecodeRole::on_grant_used(RoomId room, std::uint32_t attempt) {
  if (const auto found = find(room, attempt))
    found->handle()->advance(KvStatus::kTransferring, around_.now());
}

void DecodeRole::on_grant_expired(RoomId room, std::uint32_t attempt, std::uint64_t landed) {
  const auto found = find(room, attempt);
  if (!found) return;
  found->handle()->add_bytes(landed);
  found->fail({Code::kDeadlineExceeded, Origin::kPeer,
               fmt::format("room {} ran out of time: its grant has expired", room.value)});
}

void DecodeRole::on_session_usable(const std::string& session_id) {
  for (const auto& room : all_rooms()) room->on_session_usable(session_id);
}

void DecodeRole::on_session_refused(const std::string& session_id) {
  for (const auto& room : all_rooms()) room->on_session_refused(session_id);
}

void DecodeRole::close(const Status& why) {
  for (const auto& room : all_rooms()) room->fail(why);
  notices_.clear();
}

}  // namespace kvmend::kv
