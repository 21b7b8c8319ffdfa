// What sessions report upward: to the engine, and to metrics.
#pragma once

#include <string>

#include "health/session_health.h"
#include "kvmend/ids.h"
#include "kvmend/status.h"
#include "session/transfer_state.h"

namespace kvmend::session {

/// Loop thread. Handlers must not destroy sessions.
class SessionEvents {
 public:
  virtual ~SessionEvents() = default;
  virtual void on_session_state(const std::string& /*session_id*/, health::State /*from*/,
                                health::State /*to*/, const Status& /*cause*/) {}
  /// A blacklisted session is healthy again.
  virtual void on_recovered(const std::string& /*session_id*/, const health::Recovery&) {}
  /// Another process answers at the address (`before` unset: the first one ever).
  virtual void on_peer_incarnation(const std::string& /*session_id*/, Incarnation /*before*/,
                                   Incarnation /*now*/) {}
  /// The process that answered there as `incarnation` has died: proven, not guessed.
  virtual void on_peer_died(const std::string& /*session_id*/, Incarnation /*incarnation*/) {}
  /// The host of a failed session refuses connections from now on: its process is gone.
  virtual void on_refused(const std::string& /*session_id*/) {}
  virtual void on_transfer_done(const TransferState& /*transfer*/, const Status& /*result*/,
                                Time /*now*/) {}
  virtual void on_chunk_retry(const std::string& /*session_id*/) {}
  virtual void on_probe_done(const std::string& /*session_id*/, const Status& /*result*/) {}
  /// Most peers seem dead at once: this engine suspects itself.
  virtual void on_self_suspicion(bool /*suspected*/) {}
};

}  // namespace kvmend::session
