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
  for (std::size_t i = 0; i < sessions.size(); ++i) {
    const Admission one = sessions[i]->admit();
    pair.tickets.push_back(one.ticket);
    if (one.verdict > pair.verdict) {  // declared in this order
      pair.verdict = one.verdict;
      pair.decided_by = i;
    }
  }
  if (pair.dispatched()) return pair;
  for (std::size_t i = 0; i < sessions.size(); ++i) sessions[i]->release(pair.tickets[i]);
  pair.tickets.clear();
  return pair;
}

}  // namespace kvmend::health
