#include "kv/role.h"

#include <fmt/format.h>

namespace kvmend::kv {

std::string said_by(const wire::KvMessage& message) {
  return std::visit(
      [&](const auto& one) {
        if constexpr (requires { one.registration; }) {
          return fmt::format("{}/{}", message.index(), one.registration);
        } else if constexpr (requires { one.status; }) {
          return fmt::format("{}/{}/{}/{}", message.index(), one.room.value, one.attempt,
                             one.status);
        } else {
          return fmt::format("{}/{}/{}", message.index(), one.room.value, one.attempt);
        }
      },
      message);
}

void Surroundings::count_live(KvRole role, std::size_t live) const {
  counters.rooms = live;
  if (RoomEvents* events = port.room_events())
    events->on_room_counts(role, live, counters.announced.load(std::memory_order_relaxed));
}

void Surroundings::count_over(KvRole role, const RoomHandle& room, const Status& result,
                              std::size_t live) const {
  const KvRoomMetrics cost = room.metrics(now());
  ++(result.is_ok() ? counters.rooms_succeeded : counters.rooms_failed);
  if (result.is_ok()) counters.bytes += cost.bytes;
  if (RoomEvents* events = port.room_events())
    events->on_room_done({.role = role,
                          .result = result.code(),
                          .bytes = cost.bytes,
                          .retries = cost.retries,
                          .wait = cost.bootstrapping + cost.waiting,
                          .transfer = cost.transferring});
  count_live(role, live);
}

Status peer_gone(const std::string& session_id, Incarnation now) {
  if (now.is_set()) return peer_restarted(session_id);
  return {Code::kPeerRestarted, Origin::kPeer,
          fmt::format("peer restarted or gone: the process at {} has died", session_id)};
}

Status peer_restarted(const std::string& session_id) {
  return {Code::kPeerRestarted, Origin::kPeer,
          fmt::format("peer restarted: another process answers at {}", session_id)};
}

Status reported_by(const std::string& session_id, Code code, const std::string& reason) {
  return {
      code == Code::kOk ? Code::kAborted : code, Origin::kPeer,
      fmt::format("{} (reported by {})", reason.empty() ? "no reason given" : reason, session_id)};
}

std::string reason_text(const Status& why) {
  return why.detail().empty() ? std::string(code_name(why.code())) : why.detail();
}

wire::KvRoomStatus status_message(RoomId room, std::uint32_t attempt, const Status& result) {
  return {
      .room = room,
      .attempt = attempt,
      .status = static_cast<std::uint32_t>(result.is_ok() ? KvStatus::kSuccess : KvStatus::kFailed),
      .code = result.code(),
      .reason = result.is_ok() ? "already complete" : reason_text(result)};
}

}  // namespace kvmend::kv
