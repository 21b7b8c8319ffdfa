// Errors of the public API: one closed list of codes, each with an origin that says who is to
// blame.
#pragma once

#include <cstdint>
#include <expected>
#include <string>
#include <string_view>
#include <utility>

namespace kvmend {

/// Who caused a failure. Only `kPeer` and `kLink` ever count against a session's health.
enum class Origin : std::uint8_t { kNone, kCaller, kLocal, kPeer, kLink };

/// The closed list of error codes. `is_retryable()` says which may be tried again as they are.
/// The numbers travel on the wire: append only.
enum class Code : std::uint16_t {
  kOk = 0,
  kInvalidArgument = 1,   ///< an argument is malformed (zero length, size mismatch, bad session id)
  kNotRegistered = 2,     ///< the address lies in no registered region of that side
  kOutOfRange = 3,        ///< offset + length exceeds its region, or a page index its pool
  kAlreadyExists = 4,     ///< overlapping region, duplicate room
  kNotFound = 5,          ///< unknown id
  kPermissionDenied = 6,  ///< no live grant covers the range, or the region's access forbids it
  kResourceExhausted = 7,   ///< a named maximum was reached, or the system is out of something
  kDeadlineExceeded = 8,    ///< the deadline came first
  kCancelled = 9,           ///< the caller cancelled
  kPeerRestarted = 10,      ///< another incarnation answers at that address
  kConnectionRefused = 11,  ///< nobody listens at the peer's address
  kConnectionReset = 12,    ///< the connection broke
  kPeerSilent = 13,         ///< no sign of life within the progress deadline
  kProtocolError = 14,      ///< the peer sent something malformed
  kVersionMismatch = 15,    ///< no common protocol version
  kStaleEpoch = 16,         ///< an older epoch lost against a newer one
  kSessionFailed = 17,      ///< the session is blacklisted and the request may not wait
  kShuttingDown = 18,       ///< this side or the peer is going away
  kAborted = 19,            ///< the room was aborted
  kIncompatible = 20,       ///< the two sides' layouts can't be mapped
  kChecksumMismatch = 21,   ///< the bytes that arrived aren't the bytes that were sent
  kUnavailable = 22,        ///< not usable yet; asking again later is right
  kAuthFailed = 23,         ///< the peer didn't prove who it is
  kInternal = 24,           ///< a bug of kvmend
};

/// "kPeerRestarted" -> "peer_restarted": the name used in logs, metrics and Python.
[[nodiscard]] std::string_view code_name(Code code);
/// The same for origins: "caller", "local", "peer", "link".
[[nodiscard]] std::string_view origin_name(Origin origin);
/// Whether trying again, unchanged, can succeed (a table; no look at the detail).
[[nodiscard]] bool is_retryable(Code code);
/// Whether the number read from a peer is a known code; unknown ones become `kInternal`.
[[nodiscard]] Code code_from_wire(std::uint32_t number);

/// An error (or OK): what, whose fault, the errno where one exists, and a sentence that names the
/// values. Cheap to move. Thread-compatible.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, Origin origin, std::string detail, int sys_errno = 0)
      : code_(code), origin_(origin), errno_(sys_errno), detail_(std::move(detail)) {}

  static Status ok() { return {}; }
  [[nodiscard]] bool is_ok() const { return code_ == Code::kOk; }
  [[nodiscard]] Code code() const { return code_; }
  [[nodiscard]] Origin origin() const { return origin_; }
  [[nodiscard]] int sys_errno() const { return errno_; }
  [[nodiscard]] const std::string& detail() const { return detail_; }
  /// "peer_restarted (peer): session 10.0.0.2:7001 answers with incarnation 9f… instead of 3a…"
  [[nodiscard]] std::string to_string() const;

 private:
  Code code_ = Code::kOk;
  Origin origin_ = Origin::kNone;
  int errno_ = 0;
  std::string detail_;
};

template <class T>
using Result = std::expected<T, Status>;

/// `return fail(Code::kOutOfRange, Origin::kCaller, "...")` from a function that returns a Result.
[[nodiscard]] inline std::unexpected<Status> fail(Code code, Origin origin, std::string detail,
                                                  int sys_errno = 0) {
  return std::unexpected<Status>(Status(code, origin, std::move(detail), sys_errno));
}

}  // namespace kvmend
