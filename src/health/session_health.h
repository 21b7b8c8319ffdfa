// The health of one session: events in, actions out. No I/O, no clock, no threads.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/time.h"
#include "health/ejection.h"
#include "health/history.h"
#include "health/options.h"
#include "health/probe_backoff.h"
#include "health/transition_table.h"
#include "kvmend/ids.h"
#include "kvmend/status.h"

namespace kvmend::health {

/// A failure of the data path: lanes, handshakes, transfers, heartbeats.
struct Failure {
  Status status;
  std::uint32_t attempt;  ///< `SessionHealth::attempt()` when the lanes concerned were opened
  Time happened_at;       ///< when it was observed, not when it was reported
};

/// How the first traffic after a blacklisting was let in.
enum class LiftedBy : std::uint8_t { kProbe, kPeerHello, kNewRegistration };
[[nodiscard]] std::string_view lifted_by_name(LiftedBy lifted_by);

/// Announced once per blacklisting that ended in `healthy`.
struct Recovery {
  Duration time_to_detect;   ///< last sign of life -> blacklisted
  Duration time_to_recover;  ///< blacklisted -> healthy (the trial included)
  LiftedBy lifted_by;        ///< `kPeerHello`: the probe that passed was triggered by it
  Status first_cause;        ///< the failure that began it
};

/// What an event led to. Do the actions in the order of `enum Action`.
struct Outcome {
  Event event;
  State from;
  State to;
  ActionSet actions;
  std::uint32_t attempt = 0;  ///< with `kReconnect`: the number of the new attempt
  Time probe_at = kForever;   ///< with `kScheduleProbe`; past when one is queued and overdue
  bool probe_demanded = false;
  std::optional<Recovery> recovery;

  [[nodiscard]] bool has(Action action) const { return actions.has(action); }
};

/// The place of a dispatched transfer. Default: none was dispatched, nothing to give back.
struct Ticket {
  std::uint32_t round = 0;  ///< of the trial it belongs to; 0: none
  bool held = false;
};

struct Admission {
  enum class Verdict : std::uint8_t {
    kDispatch,  ///< send it (while suspect: as soon as the new epoch stands)
    kPark,      ///< hold it until `kReleaseParked`, `kFailParked` or `park_until()`
    kRefuse,    ///< end it now with `refusal()`
  };
  Verdict verdict = Verdict::kPark;
  Ticket ticket;
};

struct HealthCounters {
  std::uint64_t ignored_failures = 0;    ///< caller's, local, backpressure
  std::uint64_t coalesced_failures = 0;  ///< further signs of an incident already counted
  std::uint64_t strikes = 0;
  std::uint64_t blacklistings = 0;
  std::uint64_t recoveries = 0;
  std::uint64_t relapses = 0;  ///< a trial failed
  std::uint64_t restarts = 0;
  std::uint64_t probes_started = 0;
  std::uint64_t probes_passed = 0;
  std::uint64_t probes_failed = 0;
  std::uint64_t probes_outdated = 0;  ///< passed, but a failure since their start won
};

/// One owner thread; polls go through `state()` and the other const methods on that thread.
/// `options` and `self` must outlive it. `now` never goes backwards between calls.
class SessionHealth {
 public:
  /// A new session: `connecting`, attempt 1. The owner opens its first epoch itself.
  SessionHealth(const HealthOptions& options, const SelfView& self, std::uint64_t seed, Time now);

  // Requests.
  /// A request wants the session. Call before `admit`.
  Outcome on_demand(Time now);
  /// Whether a request (or a transfer that is to be retried after a blacklisting) may go out now.
  /// A dispatched one must end in exactly one `on_transfer_ok` or `release`.
  [[nodiscard]] Admission admit();
  /// How many requests the owner holds parked on the session now: while there are any, it is
  /// probed at `probe_demand_interval` and not retired.
  Outcome set_parked(std::size_t parked, Time now);
  /// Until when a request that is parked now may stay so.
  [[nodiscard]] Time park_until(Time deadline, Time now) const;
  /// `kSessionFailed` with the origin and text of what blacklisted the session.
  [[nodiscard]] Status refusal() const;

  // The data path.
  /// The handshake of `attempt` succeeded; an older attempt's is ignored.
  Outcome on_connected(Incarnation peer, std::uint32_t attempt, Time now);
  /// An acknowledged byte, an answered heartbeat, or traffic of the peer on its own lanes.
  Outcome on_life(Time now);
  /// A dispatched transfer completed.
  Outcome on_transfer_ok(Ticket ticket, Time now);
  /// A dispatched transfer ended otherwise (failed, cancelled, parked again). True when that made
  /// room in the trial: `admit()` parked requests again.
  bool release(Ticket ticket);
  [[nodiscard]] std::size_t in_flight() const { return in_flight_; }
  /// Something failed. Call for every failure, also the caller's: classification is done here.
  Outcome on_failure(const Failure& failure, Time now);

  // News of the peer. The first and the third come from a lane that somebody else opened, in the
  // peer's name: hints, which at most make us ask. Only what answers on a lane of ours is proof.
  Outcome on_peer_hello(Incarnation peer, Time now);
  /// The process that stands at the peer's address answered our handshake with a refusal.
  Outcome on_peer_answered(Incarnation peer, Time now);
  /// `peer` may be unset when the layer above doesn't know it.
  Outcome on_new_registration(Incarnation peer, Time now);

  // Probes: control, then data with read-back; "passed" means both.
  Outcome on_probe_started(Time now);
  Outcome on_probe_passed(Time started_at, Incarnation peer, Time now);
  /// Timeouts are `kPeerSilent`. A local shortage is retried without a longer interval.
  Outcome on_probe_failed(Time started_at, const Status& status, Time now);

  // Time and end.
  /// Heartbeat, probe of an idle trial, or retirement, when due. Call at `next_timer()`.
  Outcome on_timer(Time now);
  [[nodiscard]] Time next_timer() const;
  /// The owner lets go of the session (shutdown).
  Outcome on_retire(Time now);

  [[nodiscard]] State state() const { return state_; }
  [[nodiscard]] bool blacklisted() const { return is_blacklisted(state_); }
  [[nodiscard]] std::uint32_t attempt() const { return attempt_; }
  [[nodiscard]] Incarnation peer() const { return peer_; }
  [[nodiscard]] Time state_since() const { return state_since_; }
  [[nodiscard]] Time last_life() const { return last_life_; }
  [[nodiscard]] std::uint32_t trial_needed() const { return trial_needed_; }
  [[nodiscard]] Duration probation() const { return probation_; }
  [[nodiscard]] const HealthCounters& counters() const { return counters_; }
  /// How the session left `failed` the last time.
  [[nodiscard]] LiftedBy lifted_by() const { return lifted_by_; }
  [[nodiscard]] const Status& last_cause() const { return last_cause_; }
  [[nodiscard]] std::vector<HistoryEntry> history() const { return history_.entries(); }

 private:
  Outcome fire(Event event, Time now, const Status& cause = {});
  Outcome nothing(Event event) const;
  void enter(State to, Event event, Time now, const Status& cause);
  void enter_failed(Event event, Time now);
  void begin_trial(Event event, Time now);
  void clear_incident();
  void plan_probe(Outcome& out, Time now);
  [[nodiscard]] Time probe_due(Event event, Time now);
  Outcome strike(const Status& status, Time now);
  Outcome restarted(Incarnation peer, Time now, const Status& cause);
  Outcome heard_of(Time now);
  Outcome claimed(Time now);
  [[nodiscard]] Duration claim_gap() const;
  [[nodiscard]] bool is_other(Incarnation peer) const;
  [[nodiscard]] bool is_gone(Incarnation peer) const;
  void set_peer(Incarnation peer, Time now);
  [[nodiscard]] bool wanted() const { return parked_ > 0 || in_flight_ > 0; }
  void note_cause(const Status& status, Time now);
  Outcome trial_success(Time now, Event otherwise);
  void probe_ended(Time started_at);
  [[nodiscard]] Duration trial_interval() const;
  void serve_healthy_time(Time now);

  const HealthOptions* options_;
  const SelfView* self_;
  JitterSource jitter_;
  ProbeBackoff backoff_;

  State state_ = State::kConnecting;
  Time state_since_;
  std::uint32_t attempt_ = 1;
  Incarnation peer_;
  Time peer_since_ = Time::min();
  std::array<Incarnation, 8> gone_{};  ///< replaced incarnations: late news of them is ignored
  std::size_t gone_next_ = 0;
  Time last_life_;
  Time last_demand_;
  Time last_heartbeat_;
  std::size_t parked_ = 0;
  std::size_t in_flight_ = 0;

  // The incident: strikes since the last completed transfer, and its first and last cause.
  std::vector<Time> strikes_;
  Status first_cause_;
  Status last_cause_;
  Time last_failure_ = Time::min();
  std::optional<Time> blacklisted_at_;
  Duration time_to_detect_{};

  // Probes.
  std::uint32_t probes_out_ = 0;
  Time probes_valid_from_ = Time::min();  ///< earlier ones were cancelled
  Time last_probe_ = Time::min();
  Time scheduled_ = kForever;  ///< what the owner was last told
  bool scheduled_demanded_ = false;
  bool hello_pending_ = false;  ///< the scheduled or running probe answers a hello
  bool claim_pending_ = false;  ///< a hello named another incarnation; no probe has passed since
  std::uint32_t refuted_claims_ = 0;  ///< in a row
  LiftedBy lifted_by_ = LiftedBy::kProbe;
  Time lifting_probe_ = Time::min();  ///< start of the probe that opened the trial

  // The trial and the memory of relapses.
  std::uint32_t round_ = 0;
  std::uint32_t trial_needed_ = 0;
  std::uint32_t trial_ok_ = 0;
  std::uint32_t trial_out_ = 0;
  Duration probation_{};
  std::uint32_t penalty_ = 0;  ///< blacklistings not yet outlived
  Duration healthy_credit_{};

  HealthCounters counters_;
  History history_;
};

}  // namespace kvmend::health
