// The states of a session, what may happen to it, and what its owner must then do: one table.
//
//                 connected                strike                    strike, down
//   ┌────────────┐ ───────> ┌─────────┐ ───────────> ┌─────────┐  (threshold, definite)
//   │ connecting │          │ healthy │              │ suspect │ ──────────────┐
//   └────────────┘ <─────── └─────────┘ <─────────── └─────────┘               │
//     ^  │  ^    peer         ^     │       life        │ peer restarted        │
//     │  │  │    restarted    │     │ down              └──> connecting         │
//     │  │  │                 │     v                                           v
//     │  │  │            trial│  ┌────────┐ <───────────────────────────────────────
//     │  │  └── down ─────────│─>│ failed │ <──┐ strike, down,
//     │  │                   │  └────────┘    │ probe failed
//     │  │                   │     │ probe    │
//     │  │                   │     v passed,  │
//     │  │               ┌─────────┐ new      │
//     │  │               │ probing │ registration
//     │  │               └─────────┘ ─────────┘
//     │  │ idle, retire (from every state)
//     │  v
//   ┌─────────┐
//   │ retired │  demand, new registration ──> connecting
//   └─────────┘
//
// Only `probe_passed` and `new_registration` lead from `failed` towards traffic, and only
// `trial_passed` from there to `healthy`. No event means "time went by" except `idle`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>

namespace kvmend::health {

enum class State : std::uint8_t {
  kConnecting,  ///< no handshake with this incarnation yet: requests wait
  kHealthy,     ///< requests go out
  kSuspect,     ///< a strike: lanes are re-opened on a new epoch, requests go on
  kFailed,      ///< blacklisted: no request traffic, only probes
  kProbing,     ///< blacklisted, half-open: trial transfers only
  kRetired,     ///< nobody asks for it: everything is freed
};
inline constexpr std::size_t kStateCount = 6;

enum class Event : std::uint8_t {
  kConnected,      ///< the handshake of the current attempt succeeded
  kLife,           ///< an acknowledged byte, an answered heartbeat, any traffic of the peer
  kStrike,         ///< a counted failure below the threshold
  kDown,           ///< the threshold is reached, or the failure is definite
  kPeerRestarted,  ///< another incarnation stands at the address
  kPeerHello,      ///< the peer, same incarnation, said hello to us
  kPeerClaimed,    ///< a hello in the peer's name, with another incarnation: a hint, unproven
  kProbeStarted,
  kProbePassed,      ///< both stages, and no failure since it began
  kProbeFailed,      ///< or passed, but a failure since it began won
  kTrialPassed,      ///< the probation is served
  kDemand,           ///< a request wants the session
  kIdle,             ///< no demand for `idle_timeout`
  kNewRegistration,  ///< the peer registered itself anew with the layer above
  kRetire,           ///< the owner lets go of it
};
inline constexpr std::size_t kEventCount = 15;

/// What the owner must do, in this order.
enum class Action : std::uint16_t {
  kDropLanes = 1U << 0,      ///< close the lanes; unacknowledged chunks wait for the next epoch
  kFailOldPlan = 1U << 1,    ///< all that was planned for the old incarnation: "peer restarted"
  kCancelProbes = 1U << 2,   ///< end probes in flight without reporting them; leave the budget
  kReconnect = 1U << 3,      ///< open a new epoch now, as attempt `Outcome::attempt`
  kScheduleProbe = 1U << 4,  ///< `ProbeBudget::schedule(key, probe_at, probe_demanded)`
  kHeartbeat = 1U << 5,      ///< ask the peer for a sign of life
  kFailParked = 1U << 6,     ///< end parked requests with `SessionHealth::refusal()`
  kReleaseParked = 1U << 7,  ///< `admit()` parked requests again until it says park
  kAnnounceBlacklisted = 1U << 8,
  kAnnounceRecovered = 1U << 9,  ///< `Outcome::recovery` is set
  kFree = 1U << 10,              ///< give back everything the session holds
};

/// A set of actions. A value; any thread.
class ActionSet {
 public:
  constexpr ActionSet() = default;
  constexpr ActionSet(std::initializer_list<Action> actions) {
    for (const Action a : actions) add(a);
  }
  constexpr void add(Action a) { bits_ = static_cast<std::uint16_t>(bits_ | bit(a)); }
  constexpr void remove(Action a) { bits_ = static_cast<std::uint16_t>(bits_ & ~bit(a)); }
  [[nodiscard]] constexpr bool has(Action a) const { return (bits_ & bit(a)) != 0; }
  [[nodiscard]] constexpr bool empty() const { return bits_ == 0; }
  friend constexpr bool operator==(ActionSet, ActionSet) = default;

 private:
  static constexpr unsigned bit(Action a) { return static_cast<unsigned>(a); }
  std::uint16_t bits_ = 0;
};

struct Transition {
  State from;
  Event event;
  State to;
  ActionSet actions;
};

/// The row of a pair; every pair has one. Any thread.
[[nodiscard]] const Transition& transition(State from, Event event);

/// Blacklisted: no new request traffic but the half-open trial.
[[nodiscard]] constexpr bool is_blacklisted(State s) {
  return s == State::kFailed || s == State::kProbing;
}

/// "healthy", "probe_passed": the names of logs, metrics and the page.
[[nodiscard]] std::string_view state_name(State state);
[[nodiscard]] std::string_view event_name(Event event);

}  // namespace kvmend::health
