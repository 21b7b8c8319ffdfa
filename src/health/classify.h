// Which failures say something about a session, and how much. Pure; any thread.
#pragma once

#include <cstdint>

#include "kvmend/status.h"

namespace kvmend::health {

enum class Verdict : std::uint8_t {
  kIgnore,    ///< says nothing about the peer: health stays as it is
  kStrike,    ///< one of `failure_threshold`; the session reconnects at once
  kDefinite,  ///< the peer can't be used now: blacklisted without further strikes
  kRestart,   ///< another incarnation answers: the old plan is void, the session is not to blame
};

/// The verdict on `status`. Only origins `kPeer` and `kLink` ever count, and never with an errno
/// that means a shortage on this machine (cases R2, R9, R10), whoever was blamed for it.
[[nodiscard]] Verdict classify(const Status& status);

/// Whether `sys_errno` means that this machine ran out of ports, memory, descriptors or buffers.
[[nodiscard]] bool is_local_shortage(int sys_errno);

}  // namespace kvmend::health
