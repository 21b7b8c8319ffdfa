#include "kvmend/status.h"

#include <fmt/format.h>

#include <array>
#include <system_error>

namespace kvmend {
namespace {

struct CodeRow {
  Code code;
  std::string_view name;
  bool retryable;
};

// One row per code, in the order of the enum; the test checks that none is missing.
constexpr std::array kCodes{
    CodeRow{Code::kOk, "ok", false},
    CodeRow{Code::kInvalidArgument, "invalid_argument", false},
    CodeRow{Code::kNotRegistered, "not_registered", false},
    CodeRow{Code::kOutOfRange, "out_of_range", false},
    CodeRow{Code::kAlreadyExists, "already_exists", false},
    CodeRow{Code::kNotFound, "not_found", false},
    CodeRow{Code::kPermissionDenied, "permission_denied", false},
    CodeRow{Code::kResourceExhausted, "resource_exhausted", true},
    CodeRow{Code::kDeadlineExceeded, "deadline_exceeded", false},
    CodeRow{Code::kCancelled, "cancelled", false},
    CodeRow{Code::kPeerRestarted, "peer_restarted", false},
    CodeRow{Code::kConnectionRefused, "connection_refused", true},
    CodeRow{Code::kConnectionReset, "connection_reset", true},
    CodeRow{Code::kPeerSilent, "peer_silent", true},
    CodeRow{Code::kProtocolError, "protocol_error", true},
    CodeRow{Code::kVersionMismatch, "version_mismatch", false},
    CodeRow{Code::kStaleEpoch, "stale_epoch", true},
    CodeRow{Code::kSessionFailed, "session_failed", true},
    CodeRow{Code::kShuttingDown, "shutting_down", false},
    CodeRow{Code::kAborted, "aborted", false},
    CodeRow{Code::kIncompatible, "incompatible", false},
    CodeRow{Code::kChecksumMismatch, "checksum_mismatch", true},
    CodeRow{Code::kUnavailable, "unavailable", true},
    CodeRow{Code::kAuthFailed, "auth_failed", false},
    CodeRow{Code::kInternal, "internal", false},
};

const CodeRow& row(Code code) {
  const auto index = static_cast<std::size_t>(code);
  return index < kCodes.size() ? kCodes[index] : kCodes.back();
}

}  // namespace

std::string_view code_name(Code code) {
  return row(code).name;
}

bool is_retryable(Code code) {
  return row(code).retryable;
}

Code code_from_wire(std::uint32_t number) {
  return number < kCodes.size() ? kCodes[number].code : Code::kInternal;
}

std::string_view origin_name(Origin origin) {
  constexpr std::array<std::string_view, 5> kNames{"none", "caller", "local", "peer", "link"};
  const auto index = static_cast<std::size_t>(origin);
  return index < kNames.size() ? kNames[index] : "none";
}

std::string Status::to_string() const {
  if (is_ok()) return "ok";
  std::string text = fmt::format("{} ({}): {}", code_name(code_), origin_name(origin_), detail_);
  if (errno_ != 0)
    text += fmt::format(" [errno {}: {}]", errno_, std::generic_category().message(errno_));
  return text;
}

}  // namespace kvmend
