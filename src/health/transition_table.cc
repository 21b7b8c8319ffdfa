#include "health/transition_table.h"

#include <array>

namespace kvmend::health {
namespace {

constexpr Action kDrop = Action::kDropLanes;
constexpr Action kOldPlan = Action::kFailOldPlan;
constexpr Action kCancel = Action::kCancelProbes;
constexpr Action kReconnect = Action::kReconnect;
constexpr Action kProbe = Action::kScheduleProbe;
constexpr Action kBeat = Action::kHeartbeat;
constexpr Action kFailParked = Action::kFailParked;
constexpr Action kRelease = Action::kReleaseParked;
constexpr Action kBlacklisted = Action::kAnnounceBlacklisted;
constexpr Action kRecovered = Action::kAnnounceRecovered;
constexpr Action kFree = Action::kFree;

constexpr std::array<Transition, kStateCount * kEventCount> kTable{
    // First contact, or a new incarnation. A probe's outcome never moves a session that is not
    // blacklisted.
    Transition{State::kConnecting, Event::kConnected, State::kHealthy, {kRelease}},
    Transition{State::kConnecting, Event::kLife, State::kConnecting, {}},
    Transition{State::kConnecting, Event::kStrike, State::kConnecting, {kDrop, kReconnect}},
    Transition{State::kConnecting,
               Event::kDown,
               State::kFailed,
               {kDrop, kProbe, kFailParked, kBlacklisted}},
    Transition{State::kConnecting,
               Event::kPeerRestarted,
               State::kConnecting,
               {kDrop, kOldPlan, kReconnect}},
    Transition{State::kConnecting, Event::kPeerHello, State::kConnecting, {}},
    Transition{State::kConnecting, Event::kPeerClaimed, State::kConnecting, {kProbe}},
    Transition{State::kConnecting, Event::kProbeStarted, State::kConnecting, {}},
    Transition{State::kConnecting, Event::kProbePassed, State::kConnecting, {}},
    Transition{State::kConnecting, Event::kProbeFailed, State::kConnecting, {}},
    Transition{State::kConnecting, Event::kTrialPassed, State::kConnecting, {}},
    Transition{State::kConnecting, Event::kDemand, State::kConnecting, {}},
    Transition{
        State::kConnecting, Event::kIdle, State::kRetired, {kDrop, kCancel, kFailParked, kFree}},
    Transition{State::kConnecting, Event::kNewRegistration, State::kConnecting, {}},
    Transition{
        State::kConnecting, Event::kRetire, State::kRetired, {kDrop, kCancel, kFailParked, kFree}},

    Transition{State::kHealthy, Event::kConnected, State::kHealthy, {}},
    Transition{State::kHealthy, Event::kLife, State::kHealthy, {}},
    Transition{State::kHealthy, Event::kStrike, State::kSuspect, {kDrop, kReconnect}},
    Transition{
        State::kHealthy, Event::kDown, State::kFailed, {kDrop, kProbe, kFailParked, kBlacklisted}},
    Transition{
        State::kHealthy, Event::kPeerRestarted, State::kConnecting, {kDrop, kOldPlan, kReconnect}},
    Transition{State::kHealthy, Event::kPeerHello, State::kHealthy, {}},
    Transition{State::kHealthy, Event::kPeerClaimed, State::kHealthy, {kProbe}},
    Transition{State::kHealthy, Event::kProbeStarted, State::kHealthy, {}},
    Transition{State::kHealthy, Event::kProbePassed, State::kHealthy, {}},
    Transition{State::kHealthy, Event::kProbeFailed, State::kHealthy, {}},
    Transition{State::kHealthy, Event::kTrialPassed, State::kHealthy, {}},
    Transition{State::kHealthy, Event::kDemand, State::kHealthy, {}},
    Transition{
        State::kHealthy, Event::kIdle, State::kRetired, {kDrop, kCancel, kFailParked, kFree}},
    Transition{State::kHealthy, Event::kNewRegistration, State::kHealthy, {}},
    Transition{
        State::kHealthy, Event::kRetire, State::kRetired, {kDrop, kCancel, kFailParked, kFree}},

    // Healed by a sign of life on the new epoch, not by its handshake alone.
    Transition{State::kSuspect, Event::kConnected, State::kSuspect, {kBeat}},
    Transition{State::kSuspect, Event::kLife, State::kHealthy, {}},
    Transition{State::kSuspect, Event::kStrike, State::kSuspect, {kDrop, kReconnect}},
    Transition{
        State::kSuspect, Event::kDown, State::kFailed, {kDrop, kProbe, kFailParked, kBlacklisted}},
    Transition{
        State::kSuspect, Event::kPeerRestarted, State::kConnecting, {kDrop, kOldPlan, kReconnect}},
    Transition{State::kSuspect, Event::kPeerHello, State::kSuspect, {}},
    Transition{State::kSuspect, Event::kPeerClaimed, State::kSuspect, {kProbe}},
    Transition{State::kSuspect, Event::kProbeStarted, State::kSuspect, {}},
    Transition{State::kSuspect, Event::kProbePassed, State::kSuspect, {}},
    Transition{State::kSuspect, Event::kProbeFailed, State::kSuspect, {}},
    Transition{State::kSuspect, Event::kTrialPassed, State::kSuspect, {}},
    Transition{State::kSuspect, Event::kDemand, State::kSuspect, {}},
    Transition{
        State::kSuspect, Event::kIdle, State::kRetired, {kDrop, kCancel, kFailParked, kFree}},
    Transition{State::kSuspect, Event::kNewRegistration, State::kSuspect, {}},
    Transition{
        State::kSuspect, Event::kRetire, State::kRetired, {kDrop, kCancel, kFailParked, kFree}},

    // Signs of life, hellos and demand only bring the next probe forward; further failures are
    // remembered by time, so that they win over a probe that began earlier.
    Transition{State::kFailed, Event::kConnected, State::kFailed, {kDrop}},
    Transition{State::kFailed, Event::kLife, State::kFailed, {kProbe}},
    Transition{State::kFailed, Event::kStrike, State::kFailed, {}},
    Transition{State::kFailed, Event::kDown, State::kFailed, {}},
    Transition{State::kFailed, Event::kPeerRestarted, State::kFailed, {kOldPlan, kProbe}},
    Transition{State::kFailed, Event::kPeerHello, State::kFailed, {kProbe}},
    Transition{State::kFailed, Event::kPeerClaimed, State::kFailed, {kProbe}},
    Transition{State::kFailed, Event::kProbeStarted, State::kFailed, {kProbe}},
    Transition{
        State::kFailed, Event::kProbePassed, State::kProbing, {kCancel, kReconnect, kRelease}},
    Transition{State::kFailed, Event::kProbeFailed, State::kFailed, {kProbe}},
    Transition{State::kFailed, Event::kTrialPassed, State::kFailed, {}},
    Transition{State::kFailed, Event::kDemand, State::kFailed, {kProbe}},
    Transition{State::kFailed, Event::kIdle, State::kRetired, {kDrop, kCancel, kFailParked, kFree}},
    Transition{
        State::kFailed, Event::kNewRegistration, State::kProbing, {kCancel, kReconnect, kRelease}},
    Transition{
        State::kFailed, Event::kRetire, State::kRetired, {kDrop, kCancel, kFailParked, kFree}},

    // One failure is enough to fall back. Idle trials are served by data probes.
    Transition{State::kProbing, Event::kConnected, State::kProbing, {kRelease}},
    Transition{State::kProbing, Event::kLife, State::kProbing, {}},
    Transition{State::kProbing, Event::kStrike, State::kFailed, {kDrop, kProbe, kFailParked}},
    Transition{State::kProbing, Event::kDown, State::kFailed, {kDrop, kProbe, kFailParked}},
    Transition{
        State::kProbing, Event::kPeerRestarted, State::kProbing, {kDrop, kOldPlan, kReconnect}},
    Transition{State::kProbing, Event::kPeerHello, State::kProbing, {}},
    Transition{State::kProbing, Event::kPeerClaimed, State::kProbing, {kProbe}},
    Transition{State::kProbing, Event::kProbeStarted, State::kProbing, {}},
    Transition{State::kProbing, Event::kProbePassed, State::kProbing, {}},
    Transition{State::kProbing, Event::kProbeFailed, State::kFailed, {kDrop, kProbe, kFailParked}},
    Transition{
        State::kProbing, Event::kTrialPassed, State::kHealthy, {kCancel, kRelease, kRecovered}},
    Transition{State::kProbing, Event::kDemand, State::kProbing, {}},
    Transition{
        State::kProbing, Event::kIdle, State::kRetired, {kDrop, kCancel, kFailParked, kFree}},
    Transition{State::kProbing, Event::kNewRegistration, State::kProbing, {}},
    Transition{
        State::kProbing, Event::kRetire, State::kRetired, {kDrop, kCancel, kFailParked, kFree}},

    // Its owner usually destroys it; until then only demand or a registration wakes it.
    Transition{State::kRetired, Event::kConnected, State::kRetired, {kDrop}},
    Transition{State::kRetired, Event::kLife, State::kRetired, {}},
    Transition{State::kRetired, Event::kStrike, State::kRetired, {}},
    Transition{State::kRetired, Event::kDown, State::kRetired, {}},
    Transition{State::kRetired, Event::kPeerRestarted, State::kRetired, {}},
    Transition{State::kRetired, Event::kPeerHello, State::kRetired, {}},
    Transition{State::kRetired, Event::kPeerClaimed, State::kRetired, {}},
    Transition{State::kRetired, Event::kProbeStarted, State::kRetired, {}},
    Transition{State::kRetired, Event::kProbePassed, State::kRetired, {}},
    Transition{State::kRetired, Event::kProbeFailed, State::kRetired, {}},
    Transition{State::kRetired, Event::kTrialPassed, State::kRetired, {}},
    Transition{State::kRetired, Event::kDemand, State::kConnecting, {kReconnect}},
    Transition{State::kRetired, Event::kIdle, State::kRetired, {}},
    Transition{State::kRetired, Event::kNewRegistration, State::kConnecting, {kReconnect}},
    Transition{State::kRetired, Event::kRetire, State::kRetired, {}},
};

constexpr std::size_t index_of(State from, Event event) {
  return static_cast<std::size_t>(from) * kEventCount + static_cast<std::size_t>(event);
}

constexpr bool complete() {
  for (std::size_t i = 0; i < kTable.size(); ++i) {
    if (index_of(kTable[i].from, kTable[i].event) != i) return false;
  }
  return true;
}
static_assert(complete(), "every (state, event) pair has its row, in the order of the enums");

}  // namespace

const Transition& transition(State from, Event event) {
  return kTable[index_of(from, event)];
}

std::string_view state_name(State state) {
  constexpr std::array<std::string_view, kStateCount> kNames{"connecting", "healthy", "suspect",
                                                             "failed",     "probing", "retired"};
  return kNames[static_cast<std::size_t>(state)];
}

std::string_view event_name(Event event) {
  constexpr std::array<std::string_view, kEventCount> kNames{"connected",      "life",
                                                             "strike",         "down",
                                                             "peer_restarted", "peer_hello",
                                                             "peer_claimed",   "probe_started",
                                                             "probe_passed",   "probe_failed",
                                                             "trial_passed",   "demand",
                                                             "idle",           "new_registration",
                                                             "retire"};
  return kNames[static_cast<std::size_t>(event)];
}

}  // namespace kvmend::health
