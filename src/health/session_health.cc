#include "health/session_health.h"

#include <fmt/format.h>

#include <utility>

#include "base/check.h"
#include "base/sabotage.h"
#include "health/classify.h"

namespace kvmend::health {
namespace {

constexpr std::uint32_t kMaxPenalty = 16;

// The probation of a session with `penalty` earlier blacklistings: transfers and least length.
std::uint32_t transfers_for(std::uint32_t penalty, const HealthOptions& o) {
  const std::uint64_t wanted = std::uint64_t{o.trial_transfers} << penalty;
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(wanted, o.trial_max_transfers));
}

Duration length_for(std::uint32_t penalty, const HealthOptions& o) {
  Duration length = Duration::zero();
  for (std::uint32_t i = 0; i < penalty && length < o.probation_max; ++i) {
    length = length == Duration::zero() ? o.probation_step : length * 2;
  }
  return std::min(length, o.probation_max);
}

}  // namespace

std::string_view lifted_by_name(LiftedBy lifted_by) {
  switch (lifted_by) {
    case LiftedBy::kProbe:
      return "probe";
    case LiftedBy::kPeerHello:
      return "peer_hello";
    case LiftedBy::kNewRegistration:
      return "new_registration";
  }
  return "probe";
}

SessionHealth::SessionHealth(const HealthOptions& options, const SelfView& self, std::uint64_t seed,
                             Time now)
    : options_(&options),
      self_(&self),
      jitter_(seed),
      backoff_(options),
      state_since_(now),
      last_life_(now),
      last_demand_(now),
      last_heartbeat_(now),
      history_(options.history_length) {}

// ---- the one place where the state changes ----

Outcome SessionHealth::nothing(Event event) const {
  return Outcome{.event = event, .from = state_, .to = state_, .actions = {}, .recovery = {}};
}

Outcome SessionHealth::fire(Event event, Time now, const Status& cause) {
  const Transition& row = transition(state_, event);
  Outcome out{.event = event, .from = state_, .to = row.to, .actions = row.actions, .recovery = {}};
  if (row.to != state_) enter(row.to, event, now, cause);

  if (out.has(Action::kReconnect)) ++attempt_;
  out.attempt = attempt_;
  if (out.has(Action::kAnnounceRecovered) && blacklisted_at_) {
    ++counters_.recoveries;
    out.recovery = Recovery{time_to_detect_, now - *blacklisted_at_, lifted_by_, first_cause_};
    blacklisted_at_.reset();
    clear_incident();
  }
  if (out.has(Action::kFailParked) && out.to != State::kRetired &&
      (options_->policy != ParkPolicy::kFailFast || !self_->may_fail_fast())) {
    out.actions.remove(Action::kFailParked);
  }
  if (out.has(Action::kCancelProbes)) {
    probes_out_ = 0;
    probes_valid_from_ = now;
    scheduled_ = kForever;
  }
  if (out.has(Action::kScheduleProbe)) plan_probe(out, now);
  return out;
}

void SessionHealth::enter(State to, Event event, Time now, const Status& cause) {
  history_.add({now, state_, to, event, cause});
  if (state_ == State::kHealthy) serve_healthy_time(now);
  if (to == State::kFailed) enter_failed(event, now);
  if (to == State::kProbing) begin_trial(event, now);
  if (to == State::kRetired) blacklisted_at_.reset();
  if (to == State::kHealthy) {
    backoff_.reset();
    if (state_ == State::kSuspect && strikes_.empty()) clear_incident();
  }
  if (to == State::kConnecting) {
    strikes_.clear();
    last_life_ = now;
    last_demand_ = now;
  }
  if (state_ == State::kProbing) trial_out_ = 0;
  state_ = to;
  state_since_ = now;
}

void SessionHealth::clear_incident() {
  strikes_.clear();
  first_cause_ = {};
}

void SessionHealth::serve_healthy_time(Time now) {
  healthy_credit_ += now - state_since_;
  const auto outlived = healthy_credit_ / options_->probation_decay;
  healthy_credit_ %= options_->probation_decay;
  penalty_ -= static_cast<std::uint32_t>(std::min<std::int64_t>(penalty_, outlived));
}

void SessionHealth::enter_failed(Event event, Time now) {
  ++attempt_;  // reports about the lanes that are now dropped are no news
  strikes_.clear();
  probes_out_ = 0;
  scheduled_ = kForever;
  hello_pending_ = false;
  last_failure_ = std::max(last_failure_, now);
  probes_valid_from_ = now;
  if (state_ == State::kProbing) {
    ++counters_.relapses;
  } else {
    ++counters_.blacklistings;
    blacklisted_at_ = now;
    time_to_detect_ = now - last_life_;
  }
  KVM_CHECK(event == Event::kDown || state_ == State::kProbing);
  trial_needed_ = transfers_for(penalty_, *options_);
  probation_ = length_for(penalty_, *options_);
  penalty_ = std::min(penalty_ + 1, kMaxPenalty);
}

void SessionHealth::begin_trial(Event event, Time now) {
  ++round_;
  trial_ok_ = 0;
  trial_out_ = 0;
  last_heartbeat_ = now;
  if (event == Event::kNewRegistration) {
    lifted_by_ = LiftedBy::kNewRegistration;
    lifting_probe_ = now;
  } else {
    lifted_by_ = hello_pending_ ? LiftedBy::kPeerHello : LiftedBy::kProbe;
  }
  hello_pending_ = false;
}

// ---- requests ----

Outcome SessionHealth::on_demand(Time now) {
  last_demand_ = std::max(last_demand_, now);
  return fire(Event::kDemand, now);
}

Admission SessionHealth::admit() {
  switch (state_) {
    case State::kHealthy:
    case State::kSuspect:
      ++in_flight_;
      return {Admission::Verdict::kDispatch, Ticket{0, true}};
    case State::kProbing: {
      // After the k-th success the least length of the probation may still run: the trial goes on.
      const bool wanted = trial_ok_ >= trial_needed_ || trial_ok_ + trial_out_ < trial_needed_;
      if (wanted && trial_out_ < options_->trial_concurrency) {
        ++trial_out_;
        ++in_flight_;
        return {Admission::Verdict::kDispatch, Ticket{round_, true}};
      }
      break;
    }
    case State::kConnecting:
    case State::kRetired:
      return {Admission::Verdict::kPark, {}};
    case State::kFailed:
      break;
  }
  const bool refuse = options_->policy == ParkPolicy::kFailFast && self_->may_fail_fast();
  return {refuse ? Admission::Verdict::kRefuse : Admission::Verdict::kPark, {}};
}

Outcome SessionHealth::set_parked(std::size_t parked, Time now) {
  const bool was = parked_ > 0;
  parked_ = parked;
  if (was || parked > 0) last_demand_ = std::max(last_demand_, now);
  if (state_ != State::kFailed || was == (parked > 0)) return nothing(Event::kDemand);
  if (parked > 0) return fire(Event::kDemand, now);
  // Demand is over: the queued probe, if any, goes back to those without demand.
  Outcome out = nothing(Event::kDemand);
  if (scheduled_ != kForever && scheduled_demanded_) {
    scheduled_ = saturating_add(std::max(now, last_probe_), backoff_.next(jitter_.next()));
    scheduled_demanded_ = false;
    out.actions.add(Action::kScheduleProbe);
    out.probe_at = scheduled_;
  }
  return out;
}

Time SessionHealth::park_until(Time deadline, Time now) const {
  // A refusal is an answer of the peer's host: nothing that suspicion of ourselves could explain.
  if (last_cause_.code() == Code::kConnectionRefused)
    deadline = std::min(deadline, saturating_add(now, options_->refused_park_max));
  if (!self_->may_fail_fast()) return deadline;
  return std::min(deadline, saturating_add(now, options_->park_max));
}

Status SessionHealth::refusal() const {
  if (!blacklisted()) {
    return {Code::kUnavailable, Origin::kLocal,
            fmt::format("the session is {}", state_name(state_))};
  }
  return {Code::kSessionFailed, last_cause_.origin(),
          fmt::format("the session is blacklisted ({}): {}", state_name(state_),
                      last_cause_.to_string()),
          last_cause_.sys_errno()};
}

// ---- the data path ----

bool SessionHealth::is_other(Incarnation peer) const {
  return peer.is_set() && peer_.is_set() && peer != peer_ && !KVM_SABOTAGE(no_incarnation_check);
}

bool SessionHealth::is_gone(Incarnation peer) const {
  return peer.is_set() && std::ranges::find(gone_, peer) != gone_.end();
}

void SessionHealth::set_peer(Incarnation peer, Time now) {
  if (peer == peer_) return;
  std::ranges::replace(gone_, peer, Incarnation{});
  if (peer_.is_set()) {
    gone_[gone_next_] = peer_;
    gone_next_ = (gone_next_ + 1) % gone_.size();
  }
  peer_ = peer;
  peer_since_ = now;
}

Outcome SessionHealth::restarted(Incarnation peer, Time now, const Status& cause) {
  if (state_ == State::kRetired) return nothing(Event::kPeerRestarted);
  ++counters_.restarts;
  set_peer(peer, now);
  last_life_ = std::max(last_life_, now);
  if (state_ == State::kProbing) {  // the trial of the old process says nothing about the new one
    ++round_;
    trial_ok_ = 0;
    trial_out_ = 0;
    lifting_probe_ = now;
  }
  Outcome out = fire(Event::kPeerRestarted, now, cause);
  if (out.from == out.to) history_.add({now, out.from, out.to, out.event, cause});
  return out;
}

Outcome SessionHealth::on_connected(Incarnation peer, std::uint32_t attempt, Time now) {
  if (attempt != attempt_) return nothing(Event::kConnected);
  if (is_other(peer)) return restarted(peer, now, {});
  if (state_ != State::kRetired && state_ != State::kFailed) {
    if (peer.is_set()) set_peer(peer, now);
    last_life_ = std::max(last_life_, now);
  }
  return fire(Event::kConnected, now);
}

Outcome SessionHealth::on_life(Time now) {
  last_life_ = std::max(last_life_, now);
  if (state_ == State::kFailed) hello_pending_ = true;
  return fire(Event::kLife, now);
}

Outcome SessionHealth::on_transfer_ok(Ticket ticket, Time now) {
  last_life_ = std::max(last_life_, now);
  last_demand_ = std::max(last_demand_, now);
  const bool of_trial = state_ == State::kProbing && ticket.round == round_;
  release(ticket);
  if (of_trial) return trial_success(now, Event::kLife);
  if (state_ == State::kHealthy || state_ == State::kSuspect) strikes_.clear();
  if (state_ == State::kHealthy) first_cause_ = {};
  // A late completion of dropped lanes is no sign of life worth a probe.
  return state_ == State::kFailed ? nothing(Event::kLife) : fire(Event::kLife, now);
}

Outcome SessionHealth::trial_success(Time now, Event otherwise) {
  ++trial_ok_;
  const bool served = trial_ok_ >= trial_needed_ && now - state_since_ >= probation_;
  Outcome out = fire(served ? Event::kTrialPassed : otherwise, now);
  out.actions.add(Action::kReleaseParked);  // a place of the trial is free
  return out;
}

bool SessionHealth::release(Ticket ticket) {
  if (!ticket.held) return false;
  KVM_CHECK(in_flight_ > 0, "a transfer ended twice");
  --in_flight_;
  if (ticket.round == 0 || ticket.round != round_ || state_ != State::kProbing) return false;
  KVM_CHECK(trial_out_ > 0, "a trial transfer ended twice");
  --trial_out_;
  return true;
}

Outcome SessionHealth::on_failure(const Failure& failure, Time now) {
  const Verdict verdict = classify(failure.status);
  if (verdict == Verdict::kIgnore) {
    ++counters_.ignored_failures;
    return nothing(Event::kStrike);
  }
  const bool current = failure.attempt == attempt_;
  if (verdict == Verdict::kRestart) {
    if (current) return restarted({}, now, failure.status);
    ++counters_.coalesced_failures;
    return nothing(Event::kPeerRestarted);
  }
  last_failure_ = std::max(last_failure_, failure.happened_at);
  // A late report still wins over the probe that opened the trial if it happened after its start.
  const bool beats_probe = state_ == State::kProbing && failure.happened_at >= lifting_probe_;
  if (state_ == State::kFailed || (!current && !beats_probe)) {
    ++counters_.coalesced_failures;
    return nothing(Event::kStrike);
  }
  note_cause(failure.status, now);
  return verdict == Verdict::kDefinite ? fire(Event::kDown, now, failure.status)
                                       : strike(failure.status, now);
}

void SessionHealth::note_cause(const Status& status, Time now) {
  std::erase_if(strikes_, [&](Time at) { return at + options_->failure_window < now; });
  last_cause_ = History::shortened(status);
  if (!blacklisted_at_ && strikes_.empty()) first_cause_ = last_cause_;
}

Outcome SessionHealth::strike(const Status& status, Time now) {
  ++counters_.strikes;
  strikes_.push_back(now);
  const bool down = strikes_.size() >= options_->failure_threshold;
  return fire(down ? Event::kDown : Event::kStrike, now, status);
}

// ---- news of the peer ----

// Whoever can connect to us can name anybody: a hello never changes what we hold to be true.
Outcome SessionHealth::on_peer_hello(Incarnation peer, Time now) {
  if (is_gone(peer)) return nothing(Event::kPeerHello);
  return is_other(peer) ? claimed(now) : heard_of(now);
}

Outcome SessionHealth::heard_of(Time now) {
  if (state_ == State::kFailed) hello_pending_ = true;
  return fire(Event::kPeerHello, now);
}

Outcome SessionHealth::claimed(Time now) {
  if (state_ == State::kFailed) return heard_of(now);
  claim_pending_ = true;
  return fire(Event::kPeerClaimed, now);
}

Outcome SessionHealth::on_peer_answered(Incarnation peer, Time now) {
  if (is_gone(peer)) return nothing(Event::kPeerHello);
  if (state_ != State::kRetired) last_life_ = std::max(last_life_, now);
  if (is_other(peer)) return restarted(peer, now, {});
  if (!peer_.is_set()) set_peer(peer, now);
  return heard_of(now);
}

Outcome SessionHealth::on_new_registration(Incarnation peer, Time now) {
  if (is_gone(peer)) return nothing(Event::kNewRegistration);
  if (is_other(peer) && state_ != State::kRetired) return claimed(now);
  return fire(Event::kNewRegistration, now);
}

// ---- probes ----

Outcome SessionHealth::on_probe_started(Time now) {
  ++counters_.probes_started;
  ++probes_out_;
  last_probe_ = now;
  scheduled_ = kForever;
  return fire(Event::kProbeStarted, now);
}

void SessionHealth::probe_ended(Time started_at) {
  if (started_at >= probes_valid_from_ && probes_out_ > 0) --probes_out_;
}

Outcome SessionHealth::on_probe_passed(Time started_at, Incarnation peer, Time now) {
  probe_ended(started_at);
  const bool late_news = is_gone(peer) && started_at <= peer_since_;
  if (late_news || (state_ == State::kFailed && started_at <= last_failure_)) {
    ++counters_.probes_outdated;
    return state_ == State::kFailed ? fire(Event::kProbeFailed, now) : nothing(Event::kProbeFailed);
  }
  ++counters_.probes_passed;
  if (state_ == State::kRetired) return nothing(Event::kProbePassed);
  const bool other = is_other(peer);
  if (std::exchange(claim_pending_, false)) refuted_claims_ = other ? 0 : refuted_claims_ + 1;
  if (other && state_ != State::kFailed) return restarted(peer, now, {});
  if (other) ++counters_.restarts;
  if (peer.is_set()) set_peer(peer, now);
  last_life_ = std::max(last_life_, now);
  if (state_ == State::kProbing && started_at > std::max(state_since_, lifting_probe_)) {
    return trial_success(now, Event::kProbePassed);
  }
  if (state_ == State::kFailed) lifting_probe_ = started_at;
  Outcome out = fire(Event::kProbePassed, now);
  if (other) out.actions.add(Action::kFailOldPlan);
  return out;
}

Outcome SessionHealth::on_probe_failed(Time started_at, const Status& status, Time now) {
  probe_ended(started_at);
  ++counters_.probes_failed;
  const bool blamed = classify(status) != Verdict::kIgnore;
  if (state_ == State::kProbing) {
    // Only a probe of this trial can fail it; one that was cancelled at its beginning can't.
    if (started_at <= state_since_ || !blamed) return nothing(Event::kProbeFailed);
    last_cause_ = History::shortened(status);
    return fire(Event::kProbeFailed, now, status);
  }
  if (state_ != State::kFailed) return nothing(Event::kProbeFailed);
  hello_pending_ = false;
  if (blamed) {
    last_cause_ = History::shortened(status);
    return fire(Event::kProbeFailed, now, status);
  }
  const ProbeBackoff before = backoff_;
  Outcome out = fire(Event::kProbeFailed, now, status);
  backoff_ = before;
  return out;
}

Time SessionHealth::probe_due(Event event, Time now) {
  const Time last = std::max(last_probe_, probes_valid_from_);
  const bool overlap_allowed = probes_out_ < options_->max_overlapping_probes;
  switch (event) {
    case Event::kLife:
      if (!options_->probes_enabled || !overlap_allowed) return kForever;
      return std::max(now, saturating_add(last_probe_, options_->probe_demand_interval));
    case Event::kPeerHello:
    case Event::kPeerRestarted:
      if (!overlap_allowed) return kForever;
      return std::max(now, saturating_add(last_probe_, options_->probe_hello_gap));
    case Event::kPeerClaimed:
      if (!overlap_allowed) return kForever;
      return std::max(now, saturating_add(last_probe_, claim_gap()));
    case Event::kDemand:
      if (!options_->probes_enabled || !overlap_allowed) return kForever;
      return std::max(now, saturating_add(last, options_->probe_demand_interval));
    default:
      break;
  }
  if (!options_->probes_enabled || !overlap_allowed) return kForever;
  if (parked_ > 0) {
    return std::max(now, saturating_add(last, options_->probe_demand_interval));
  }
  // One at a time without demand; the interval runs from start to start.
  if (probes_out_ > 0) return kForever;
  return std::max(now, saturating_add(last, backoff_.next(jitter_.next())));
}

// A process that restarted is asked for at once. Claims that turned out wrong, one after another,
// are somebody's game: they cost no more than heartbeats.
Duration SessionHealth::claim_gap() const {
  constexpr std::uint32_t kMaxDoublings = 16;
  const Duration gap = options_->probe_hello_gap * (1U << std::min(refuted_claims_, kMaxDoublings));
  return std::min(gap, std::max(options_->probe_hello_gap, options_->heartbeat_interval));
}

void SessionHealth::plan_probe(Outcome& out, Time now) {
  const bool demanded = parked_ > 0 || out.event == Event::kDemand;
  const Time due = probe_due(out.event, now);
  const bool sooner = due < scheduled_;
  const bool raised = scheduled_ != kForever && demanded && !scheduled_demanded_;
  if (due == kForever || (!sooner && !raised)) {
    out.actions.remove(Action::kScheduleProbe);
    return;
  }
  scheduled_ = std::min(due, scheduled_);
  scheduled_demanded_ = demanded;
  out.probe_at = scheduled_;
  out.probe_demanded = demanded;
}

// ---- time and end ----

Time SessionHealth::next_timer() const {
  if (state_ == State::kRetired) return kForever;
  if (KVM_SABOTAGE(heal_by_clock) && state_ == State::kFailed)
    return saturating_add(state_since_, options_->heartbeat_interval);
  Time at = wanted() ? kForever : saturating_add(last_demand_, options_->idle_timeout);
  const bool beats = state_ == State::kHealthy || state_ == State::kSuspect ||
                     (state_ == State::kProbing && trial_out_ == 0 && probes_out_ == 0);
  if (beats) {
    const bool trial = state_ == State::kProbing;
    const Time quiet_since = std::max(last_heartbeat_, trial ? last_probe_ : last_life_);
    at = std::min(
        at, saturating_add(quiet_since, trial ? trial_interval() : options_->heartbeat_interval));
  }
  return at;
}

// A trial that nobody's requests serve: its data probes are spread over its least length, so that
// it ends about then. Spaced like heartbeats they would keep a session that needs 24 successes
// blacklisted for 24 s, whatever its probation.
Duration SessionHealth::trial_interval() const {
  return std::clamp<Duration>(
      probation_ / std::max(trial_needed_, 1U), options_->probe_demand_interval,
      std::max(options_->probe_demand_interval, options_->heartbeat_interval));
}

Outcome SessionHealth::on_timer(Time now) {
  if (KVM_SABOTAGE(heal_by_clock) && state_ == State::kFailed)
    return fire(Event::kProbePassed, now);
  if (now < next_timer()) return nothing(Event::kLife);
  if (!wanted() && now >= saturating_add(last_demand_, options_->idle_timeout)) {
    return fire(Event::kIdle, now);
  }
  Outcome out = nothing(Event::kLife);
  last_heartbeat_ = now;
  if (state_ == State::kProbing) {
    if (!options_->probes_enabled) return out;
    out.actions.add(Action::kScheduleProbe);
    scheduled_ = std::min(scheduled_, now);
    out.probe_at = scheduled_;
  } else {
    out.actions.add(Action::kHeartbeat);
  }
  return out;
}

Outcome SessionHealth::on_retire(Time now) {
  return fire(Event::kRetire, now,
              Status(Code::kShuttingDown, Origin::kLocal, "the session is given up"));
}

}  // namespace kvmend::health
