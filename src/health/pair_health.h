// A pair (all sessions between a prefill and a decode instance) is admitted, parked or refused as
// one: a request is never half dispatched (case R11). Pure; the sessions' owner thread.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "health/session_health.h"

namespace kvmend::health {

/// The state that the pair shows: the worst of its sessions, in the order healthy, suspect,
/// connecting, retired, probing, failed. An empty pair is healthy.
[[nodiscard]] State worst_state(std::span<const SessionHealth* const> sessions);

struct PairAdmission {
  Admission::Verdict verdict = Admission::Verdict::kDispatch;
  std::vector<Ticket> tickets;  ///< with `kDispatch`: one per session, in their order
  std::size_t decided_by = 0;   ///< else: the first session that gave the verdict
  [[nodiscard]] bool dispatched() const { return verdict == Admission::Verdict::kDispatch; }
};

/// All sessions dispatch, or none does: a refusal wins over parking, parking over dispatch, and
/// trial places already taken are given back. The reason of a refusal is that session's
/// `refusal()`. Call `on_demand` on each session before.
[[nodiscard]] PairAdmission admit_pair(std::span<SessionHealth* const> sessions);

}  // namespace kvmend::health
