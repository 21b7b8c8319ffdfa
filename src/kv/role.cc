#include "kv/role.h"

#include <fmt/format.h>

namespace kvmend::kv {

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
