#include "health/pair_health.h"

#include <algorithm>

namespace kvmend::health {
namespace {

int severity(State state) {
  switch (state) {
    case State::kHealthy:
      return 0;
    case State::kSuspect:
      return 1;
    case State::kConnecting:
      return 2;
    case State::kRetired:
      return 3;
    case State::kProbing:
      return 4;
    case State::kFailed:
      return 5;
  }
  return 5;
}

}  // namespace

State worst_state(std::span<const SessionHealth* const> sessions) {
  State worst = State::kHealthy;
  for (const SessionHealth* session : sessions) {
    if (severity(session->state()) > severity(worst)) worst = session->state();
  }
  return worst;
}

PairAdmission admit_pair(std::span<SessionHealth* const> sessions) {
  PairAdmission pair;
  pair.tickets.reserve(sessions.size());
  for (SessionHealth* session : sessions) {
    const Admission one = session->admit();
    pair.tickets.push_back(one.ticket);
    if (one.verdict == Admission::Verdict::kRefuse && pair.verdict != Admission::Verdict::kRefuse) {
      pair.reason = session->refusal();
    }
    pair.verdict = std::max(pair.verdict, one.verdict);  // declared in this order
  }
  if (pair.verdict == Admission::Verdict::kDispatch) return pair;
  for (std::size_t i = 0; i < sessions.size(); ++i) sessions[i]->release(pair.tickets[i]);
  pair.tickets.clear();
  return pair;
}

}  // namespace kvmend::health
