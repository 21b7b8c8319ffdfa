#include "health/classify.h"

#include <array>
#include <cerrno>
#include <cstddef>

namespace kvmend::health {
namespace {

struct Row {
  Code code;
  Verdict peer;  ///< the peer is to blame
  Verdict link;  ///< the way to it is
};

constexpr Verdict kI = Verdict::kIgnore;
constexpr Verdict kS = Verdict::kStrike;
constexpr Verdict kD = Verdict::kDefinite;
constexpr Verdict kR = Verdict::kRestart;

// One row per code, in the order of the enum.
constexpr std::array kRows{
    Row{Code::kOk, kI, kI},
    // The peer refused what we asked for: it is alive and right.
    Row{Code::kInvalidArgument, kI, kI},
    Row{Code::kNotRegistered, kI, kI},
    Row{Code::kOutOfRange, kI, kI},
    Row{Code::kAlreadyExists, kI, kI},
    Row{Code::kNotFound, kI, kI},
    Row{Code::kPermissionDenied, kI, kI},
    // Backpressure waits; it is not a failure.
    Row{Code::kResourceExhausted, kI, kI},
    // A request's deadline may be any; a peer without progress is reported as silent.
    Row{Code::kDeadlineExceeded, kI, kI},
    Row{Code::kCancelled, kI, kI},
    Row{Code::kPeerRestarted, kR, kR},
    Row{Code::kConnectionRefused, kD, kD},
    Row{Code::kConnectionReset, kS, kS},
    // The progress deadline was grace enough; probes find its end faster than retries would.
    Row{Code::kPeerSilent, kD, kD},
    Row{Code::kProtocolError, kS, kS},
    Row{Code::kVersionMismatch, kD, kD},
    // Our own newer epoch won.
    Row{Code::kStaleEpoch, kI, kI},
    // Our own verdict, come back: not a second piece of evidence.
    Row{Code::kSessionFailed, kI, kI},
    Row{Code::kShuttingDown, kD, kD},
    Row{Code::kAborted, kI, kI},
    Row{Code::kIncompatible, kI, kI},
    Row{Code::kChecksumMismatch, kS, kS},
    // From the peer "ask again later"; from the link "no route".
    Row{Code::kUnavailable, kI, kS},
    Row{Code::kAuthFailed, kD, kD},
    Row{Code::kInternal, kS, kS},
};

constexpr bool in_order() {
  for (std::size_t i = 0; i < kRows.size(); ++i) {
    if (static_cast<std::size_t>(kRows[i].code) != i) return false;
  }
  return kRows.size() == static_cast<std::size_t>(Code::kInternal) + 1;
}
static_assert(in_order(), "every code has its row, in the order of the enum");

}  // namespace

bool is_local_shortage(int sys_errno) {
  switch (sys_errno) {
    case EADDRNOTAVAIL:
    case EADDRINUSE:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case ENOBUFS:
    case EAGAIN:
      return true;
    default:
      return false;
  }
}

Verdict classify(const Status& status) {
  if (is_local_shortage(status.sys_errno())) return Verdict::kIgnore;
  const auto index = static_cast<std::size_t>(status.code());
  if (index >= kRows.size()) return Verdict::kIgnore;
  switch (status.origin()) {
    case Origin::kPeer:
      return kRows[index].peer;
    case Origin::kLink:
      return kRows[index].link;
    case Origin::kNone:
    case Origin::kCaller:
    case Origin::kLocal:
      break;
  }
  return Verdict::kIgnore;
}

}  // namespace kvmend::health
