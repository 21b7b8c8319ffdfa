// What the public sender and receiver share.
#pragma once

#include <fmt/format.h>

#include <memory>
#include <string_view>

#include "kv/link.h"
#include "wire/kv_messages.h"

namespace kvmend::kv {

[[nodiscard]] inline std::shared_ptr<RoomHandle> make_handle(const Link& link, RoomId room) {
  return std::make_shared<RoomHandle>(room, link.now().value_or(Time{}));
}

/// False when the handle has failed: the room number isn't one, or the manager has the other role.
[[nodiscard]] inline bool check_handle(const Link& link, RoomHandle& handle, KvRole role) {
  if (link.role() != role) {
    handle.fail({Code::kInvalidArgument, Origin::kCaller,
                 role == KvRole::kPrefill ? "a sender needs a manager of the prefill role"
                                          : "a receiver needs a manager of the decode role"},
                Time{});
  } else if (handle.room().value > wire::kMaxRoomId) {
    handle.fail({Code::kInvalidArgument, Origin::kCaller,
                 fmt::format("room {} is beyond 63 bits", handle.room().value)},
                Time{});
  }
  return handle.status() != KvStatus::kFailed;
}

[[nodiscard]] inline Status aborted(std::string_view reason) {
  return {Code::kAborted, Origin::kCaller, reason.empty() ? "aborted" : std::string(reason)};
}

[[nodiscard]] inline Status cleared() {
  return {Code::kCancelled, Origin::kCaller, "the room was cleared before it had ended"};
}

/// The refusal of a call that came too early or too often.
[[nodiscard]] inline Status misuse(std::string detail) {
  return {Code::kInvalidArgument, Origin::kCaller, std::move(detail)};
}

}  // namespace kvmend::kv
