#include "health/session_health.h"

#include <gtest/gtest.h>

namespace kvmend::health {
namespace {

const Incarnation kPeer{11};
const Incarnation kNewPeer{22};

class SessionHealthTest : public testing::Test {
 protected:
  void connect() { session.on_connected(kPeer, session.attempt(), now); }
  Outcome fail(Code code, Origin origin = Origin::kPeer) {
    return session.on_failure({Status(code, origin, "test"), session.attempt(), now}, now);
  }
  void blacklist() {
    connect();
    now += 50ms;
    fail(Code::kConnectionRefused);
    ASSERT_EQ(session.state(), State::kFailed);
  }
  Outcome probe_passes(Incarnation peer = kPeer) {
    const Time started = now;
    session.on_probe_started(now);
    now += 1ms;
    return session.on_probe_passed(started, peer, now);
  }
  void open_trial() {
    blacklist();
    now += 100ms;
    probe_passes();
    ASSERT_EQ(session.state(), State::kProbing);
  }
  Outcome trial_transfer() {
    const Admission admission = session.admit();
    EXPECT_EQ(admission.verdict, Admission::Verdict::kDispatch);
    now += 1ms;
    return session.on_transfer_ok(admission.ticket, now);
  }

  HealthOptions options;
  SelfView self;
  Time now = Time{} + 1h;
  SessionHealth session{options, self, 1, now};
};

TEST_F(SessionHealthTest, RequestsWaitForTheFirstHandshake) {
  EXPECT_EQ(session.admit().verdict, Admission::Verdict::kPark);
  const Outcome out = session.on_connected(kPeer, 1, now);
  EXPECT_EQ(out.to, State::kHealthy);
  EXPECT_TRUE(out.has(Action::kReleaseParked));
  EXPECT_EQ(session.admit().verdict, Admission::Verdict::kDispatch);
}

TEST_F(SessionHealthTest, ManyReportsOfOneIncidentAreOneStrike) {
  connect();
  const std::uint32_t attempt = session.attempt();
  for (int lane = 0; lane < 8; ++lane) {
    session.on_failure({Status(Code::kConnectionReset, Origin::kLink, "lane"), attempt, now}, now);
  }
  EXPECT_EQ(session.state(), State::kSuspect);
  EXPECT_EQ(session.counters().strikes, 1U);
  EXPECT_EQ(session.counters().coalesced_failures, 7U);
}

TEST_F(SessionHealthTest, ThresholdCountsOnlyWithoutACompletedTransferBetween) {
  connect();
  for (int i = 0; i < 10; ++i) {
    fail(Code::kConnectionReset);
    session.on_connected(kPeer, session.attempt(), now);
    session.on_transfer_ok(session.admit().ticket, now);
    EXPECT_EQ(session.state(), State::kHealthy);
  }
  fail(Code::kConnectionReset);
  fail(Code::kConnectionReset);
  const Outcome out = fail(Code::kConnectionReset);
  EXPECT_EQ(out.to, State::kFailed);
  EXPECT_TRUE(out.has(Action::kAnnounceBlacklisted));
  EXPECT_FALSE(out.has(Action::kFailParked));
}

TEST_F(SessionHealthTest, StrikesOutsideTheWindowNoLongerCount) {
  connect();
  for (int i = 0; i < 6; ++i) {
    fail(Code::kConnectionReset);
    now += options.failure_window / 2 + 1ms;
  }
  EXPECT_EQ(session.state(), State::kSuspect);
}

TEST_F(SessionHealthTest, TimeAloneHealsNothing) {
  blacklist();
  for (int i = 0; i < 5'000; ++i) {
    now += 100ms;
    session.on_timer(now);
    ASSERT_EQ(session.state(), State::kFailed);
  }
}

TEST_F(SessionHealthTest, AFailureAfterAProbeBeganWins) {
  blacklist();
  now += 100ms;
  const Time started = now;
  session.on_probe_started(now);
  now += 5ms;
  session.on_failure({Status(Code::kConnectionReset, Origin::kLink, "late"), 1, now}, now);
  now += 5ms;
  const Outcome out = session.on_probe_passed(started, kPeer, now);
  EXPECT_EQ(out.to, State::kFailed);
  EXPECT_TRUE(out.has(Action::kScheduleProbe));
  EXPECT_EQ(session.counters().probes_outdated, 1U);
  now += 1s;
  EXPECT_EQ(probe_passes().to, State::kProbing);
}

TEST_F(SessionHealthTest, AFailureReportedLateWinsOverTheTrialToo) {
  blacklist();
  now += 100ms;
  const Time happened = now + 500us;
  EXPECT_EQ(probe_passes().to, State::kProbing);
  session.on_failure({Status(Code::kConnectionReset, Origin::kLink, "late"), 1, happened}, now);
  EXPECT_EQ(session.state(), State::kFailed);
}

TEST_F(SessionHealthTest, AnEarlierProbesTimeoutDoesNotWinOverALaterPass) {
  blacklist();
  session.set_parked(1, now);
  now += 100ms;
  const Time first = now;
  session.on_probe_started(first);
  now += 100ms;
  const Time second = now;
  session.on_probe_started(second);
  now += 1ms;
  session.on_probe_failed(first, Status(Code::kPeerSilent, Origin::kPeer, "timeout"), now);
  EXPECT_EQ(session.on_probe_passed(second, kPeer, now).to, State::kProbing);
}

TEST_F(SessionHealthTest, TheTrialAdmitsKTransfersAndTheirSuccessRecovers) {
  open_trial();
  std::vector<Ticket> tickets;
  for (std::uint32_t i = 0; i < options.trial_transfers; ++i) {
    const Admission admission = session.admit();
    ASSERT_EQ(admission.verdict, Admission::Verdict::kDispatch);
    tickets.push_back(admission.ticket);
  }
  EXPECT_EQ(session.admit().verdict, Admission::Verdict::kPark);
  EXPECT_TRUE(session.release(tickets.back()));  // cancelled by its caller: its place is free
  tickets.back() = session.admit().ticket;
  now += 10ms;
  EXPECT_FALSE(session.on_transfer_ok(tickets[0], now).recovery);
  EXPECT_FALSE(session.on_transfer_ok(tickets[1], now).recovery);
  const Outcome out = session.on_transfer_ok(tickets[2], now);
  EXPECT_EQ(out.to, State::kHealthy);
  ASSERT_TRUE(out.recovery);
  EXPECT_EQ(out.recovery->first_cause.code(), Code::kConnectionRefused);
  EXPECT_EQ(out.recovery->time_to_detect, 50ms);
  EXPECT_EQ(out.recovery->time_to_recover, 111ms);
  EXPECT_EQ(out.recovery->lifted_by, LiftedBy::kProbe);
  EXPECT_EQ(session.counters().recoveries, 1U);
}

TEST_F(SessionHealthTest, OneFailureEndsTheTrialAndTheNextIsLonger) {
  open_trial();
  EXPECT_EQ(session.trial_needed(), 3U);
  const Ticket ticket = session.admit().ticket;
  EXPECT_EQ(fail(Code::kConnectionReset).to, State::kFailed);
  session.release(ticket);
  EXPECT_EQ(session.trial_needed(), 6U);
  EXPECT_EQ(session.probation(), options.probation_step);
  EXPECT_EQ(session.counters().blacklistings, 1U);
  EXPECT_EQ(session.counters().relapses, 1U);
  EXPECT_EQ(session.counters().recoveries, 0U);
}

TEST_F(SessionHealthTest, AnIdleTrialIsServedByDataProbes) {
  open_trial();
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(session.state(), State::kProbing);
    now = session.next_timer();
    const Outcome out = session.on_timer(now);
    ASSERT_TRUE(out.has(Action::kScheduleProbe));
    probe_passes();
  }
  EXPECT_EQ(session.state(), State::kHealthy);
  EXPECT_EQ(session.counters().recoveries, 1U);
}

// Six resets once kept a session that nobody used in probation for 18 s: a heartbeat per success.
TEST_F(SessionHealthTest, AnIdleTrialEndsAboutWhenItsProbationDoes) {
  open_trial();
  for (int relapse = 0; relapse < 6; ++relapse) {
    fail(Code::kConnectionReset);
    now += 200ms;
    probe_passes();
    ASSERT_EQ(session.state(), State::kProbing);
    const std::uint32_t needed = session.trial_needed();
    const Duration probation = session.probation();
    SessionHealth idle = session;
    Time at = now;
    while (idle.state() == State::kProbing) {
      at = idle.next_timer();
      const Outcome out = idle.on_timer(at);
      if (!out.has(Action::kScheduleProbe)) continue;
      const Time started = std::max(at, out.probe_at);
      idle.on_probe_started(started);
      at = started + 1ms;
      idle.on_probe_passed(started, kPeer, at);
    }
    EXPECT_EQ(idle.state(), State::kHealthy);
    EXPECT_GE(at - now, probation);
    const Duration least = needed * (options.probe_demand_interval + 1ms);
    EXPECT_LE(at - now, std::max(probation * 11 / 10, least) + options.heartbeat_interval)
        << needed;
  }
}

TEST_F(SessionHealthTest, HelloAndDemandBringTheProbeForward) {
  blacklist();
  for (int i = 0; i < 5; ++i) {
    now += 5s;
    const Time started = now;
    session.on_probe_started(now);
    now += 1s;
    session.on_probe_failed(started, Status(Code::kPeerSilent, Origin::kPeer, ""), now);
  }
  const Outcome demand = session.set_parked(1, now);
  ASSERT_TRUE(demand.has(Action::kScheduleProbe));
  EXPECT_TRUE(demand.probe_demanded);
  EXPECT_LE(demand.probe_at, now + options.probe_demand_interval);
  session.on_probe_started(now);
  now += 30ms;
  const Outcome hello = session.on_peer_hello(kPeer, now);
  ASSERT_TRUE(hello.has(Action::kScheduleProbe));
  EXPECT_EQ(hello.probe_at, now);
  EXPECT_EQ(hello.to, State::kFailed);
}

TEST_F(SessionHealthTest, ANewIncarnationVoidsThePlanAndIsNotToBlame) {
  connect();
  const Outcome out = session.on_peer_answered(kNewPeer, now);
  EXPECT_EQ(out.to, State::kConnecting);
  EXPECT_TRUE(out.has(Action::kFailOldPlan));
  EXPECT_TRUE(out.has(Action::kReconnect));
  EXPECT_EQ(session.counters().strikes, 0U);
  EXPECT_EQ(session.counters().blacklistings, 0U);
  // The dead process's hello comes out of the backlog late.
  EXPECT_TRUE(session.on_peer_hello(kPeer, now).actions.empty());
  EXPECT_EQ(session.peer(), kNewPeer);
  // A handshake is the truth, also if that incarnation was thought to be gone.
  EXPECT_TRUE(session.on_connected(kPeer, session.attempt(), now).has(Action::kFailOldPlan));
  EXPECT_EQ(session.on_connected(kPeer, session.attempt(), now).to, State::kHealthy);
}

// Anyone who can connect can say hello in a peer's name, with an incarnation of his own.
TEST_F(SessionHealthTest, AHelloOfAnotherIncarnationOnlyMakesUsAsk) {
  connect();
  const Outcome hello = session.on_peer_hello(kNewPeer, now);
  EXPECT_EQ(hello.to, State::kHealthy);
  EXPECT_EQ(hello.actions, ActionSet{Action::kScheduleProbe});
  EXPECT_EQ(hello.probe_at, now);
  EXPECT_EQ(session.peer(), kPeer);
  // It was a lie: those we know answer.
  Time started = now;
  session.on_probe_started(now);
  now += 2ms;
  EXPECT_TRUE(session.on_probe_passed(started, kPeer, now).actions.empty());
  EXPECT_EQ(session.state(), State::kHealthy);
  EXPECT_EQ(session.counters().restarts, 0U);
  // It was true: only the answer voids the plan.
  now += 1s;
  ASSERT_TRUE(session.on_peer_hello(kNewPeer, now).has(Action::kScheduleProbe));
  started = now;
  session.on_probe_started(now);
  now += 2ms;
  const Outcome out = session.on_probe_passed(started, kNewPeer, now);
  EXPECT_EQ(out.to, State::kConnecting);
  EXPECT_TRUE(out.has(Action::kFailOldPlan));
  EXPECT_TRUE(out.has(Action::kReconnect));
  EXPECT_EQ(session.peer(), kNewPeer);
}

TEST_F(SessionHealthTest, AFloodOfFalseHellosCostsNoMoreThanHeartbeats) {
  connect();
  const Time end = now + 60s;
  std::uint64_t probes = 0;
  for (std::uint64_t i = 0; now < end; ++i, now += 5ms) {
    const Outcome hello = session.on_peer_hello(Incarnation(1'000'000 + i), now);
    if (hello.has(Action::kScheduleProbe)) {
      now = std::max(now, hello.probe_at);
      const Time started = now;
      session.on_probe_started(now);
      now += 1ms;
      session.on_probe_passed(started, kPeer, now);
      ++probes;
    }
  }
  EXPECT_LE(probes, 70U);
  EXPECT_EQ(session.state(), State::kHealthy);
}

// Before the first handshake too: who is meant is told by who answers.
TEST_F(SessionHealthTest, AHelloDoesNotSayWhomASessionIsTo) {
  EXPECT_TRUE(session.on_peer_hello(kNewPeer, now).actions.empty());
  EXPECT_FALSE(session.peer().is_set());
  EXPECT_TRUE(session.on_new_registration(kNewPeer, now).actions.empty());
  EXPECT_FALSE(session.peer().is_set());
}

TEST_F(SessionHealthTest, ARegistrationOfAnotherIncarnationOnlyMakesUsAsk) {
  connect();
  EXPECT_EQ(session.on_new_registration(kNewPeer, now).actions, ActionSet{Action::kScheduleProbe});
  EXPECT_EQ(session.peer(), kPeer);
  fail(Code::kPeerSilent);
  now += 10ms;
  const Outcome out = session.on_new_registration(kNewPeer, now);
  EXPECT_EQ(out.to, State::kFailed);
  EXPECT_TRUE(out.has(Action::kScheduleProbe));
}

TEST_F(SessionHealthTest, ARegistrationLiftsTheBlacklistIntoATrial) {
  blacklist();
  const Outcome out = session.on_new_registration(kPeer, now);
  EXPECT_EQ(out.to, State::kProbing);
  for (int i = 0; i < 2; ++i) trial_transfer();
  const Outcome last = trial_transfer();
  ASSERT_TRUE(last.recovery);
  EXPECT_EQ(last.recovery->lifted_by, LiftedBy::kNewRegistration);
}

TEST_F(SessionHealthTest, SwitchedOffProbesCostNothingButAHelloStillLifts) {
  options.probes_enabled = false;
  connect();
  EXPECT_FALSE(fail(Code::kPeerSilent).has(Action::kScheduleProbe));
  EXPECT_FALSE(session.set_parked(1, now).has(Action::kScheduleProbe));
  now += 1s;
  const Outcome hello = session.on_peer_hello(kPeer, now);
  EXPECT_TRUE(hello.has(Action::kScheduleProbe));
  EXPECT_EQ(probe_passes().to, State::kProbing);
}

TEST_F(SessionHealthTest, FailFastRefusesWithTheReasonUnlessTheEngineSuspectsItself) {
  options.policy = ParkPolicy::kFailFast;
  connect();
  EXPECT_TRUE(fail(Code::kConnectionRefused).has(Action::kFailParked));
  EXPECT_EQ(session.admit().verdict, Admission::Verdict::kRefuse);
  EXPECT_EQ(session.refusal().code(), Code::kSessionFailed);
  EXPECT_NE(session.refusal().detail().find("connection_refused"), std::string::npos);
  self.suspected = true;
  EXPECT_EQ(session.admit().verdict, Admission::Verdict::kPark);
}

TEST_F(SessionHealthTest, ParkMaxShortensTheDeadlineUnlessTheEngineSuspectsItself) {
  options.park_max = 2s;
  EXPECT_EQ(session.park_until(now + 30s, now), now + 2s);
  EXPECT_EQ(session.park_until(now + 1s, now), now + 1s);
  self.suspected = true;
  EXPECT_EQ(session.park_until(now + 30s, now), now + 30s);
  self.suspected = false;
  options.park_max = Duration::max();
  EXPECT_EQ(session.park_until(kForever, now), kForever);
}

TEST_F(SessionHealthTest, RefusedParkMaxHoldsWhileThePeersHostRefusesAlsoUnderSuspicion) {
  options.refused_park_max = 2s;
  connect();
  fail(Code::kConnectionReset);
  EXPECT_EQ(session.park_until(now + 30s, now), now + 30s);
  fail(Code::kConnectionRefused);
  EXPECT_EQ(session.park_until(now + 30s, now), now + 2s);
  EXPECT_EQ(session.park_until(now + 1s, now), now + 1s);
  self.suspected = true;
  EXPECT_EQ(session.park_until(now + 30s, now), now + 2s);
  options.refused_park_max = Duration::max();
  EXPECT_EQ(session.park_until(kForever, now), kForever);
}

TEST_F(SessionHealthTest, AnIdleSessionIsRetiredAndDemandWakesItThroughAHandshake) {
  connect();
  const Ticket busy = session.admit().ticket;
  now += options.idle_timeout + 1s;
  EXPECT_NE(session.on_timer(now).to, State::kRetired);  // something is in flight
  session.release(busy);
  now += options.idle_timeout;
  const Outcome out = session.on_timer(now);
  EXPECT_EQ(out.to, State::kRetired);
  EXPECT_TRUE(out.has(Action::kFree));
  EXPECT_EQ(session.next_timer(), kForever);
  EXPECT_TRUE(session.on_demand(now).has(Action::kReconnect));
  EXPECT_EQ(session.admit().verdict, Admission::Verdict::kPark);
}

TEST_F(SessionHealthTest, HeartbeatsOnlyWithoutOtherLife) {
  connect();
  const Time first = session.next_timer();
  EXPECT_EQ(first, now + options.heartbeat_interval);
  now += 500ms;
  session.on_life(now);
  EXPECT_TRUE(session.on_timer(first).actions.empty());
  now = session.next_timer();
  EXPECT_TRUE(session.on_timer(now).has(Action::kHeartbeat));
  EXPECT_EQ(session.next_timer(), now + options.heartbeat_interval);
}

TEST_F(SessionHealthTest, TheHistoryIsBoundedAndOldestFirst) {
  connect();
  for (int i = 0; i < 100; ++i) {
    now += 1ms;
    fail(Code::kConnectionReset);
    session.on_transfer_ok(session.admit().ticket, now);
  }
  const std::vector<HistoryEntry> history = session.history();
  ASSERT_EQ(history.size(), options.history_length);
  for (std::size_t i = 1; i < history.size(); ++i) {
    EXPECT_LE(history[i - 1].at, history[i].at);
    EXPECT_EQ(history[i - 1].to, history[i].from);
  }
}

TEST_F(SessionHealthTest, ALocalShortageDuringAProbeDoesNotLengthenItsInterval) {
  blacklist();
  for (int i = 0; i < 10; ++i) {
    now += 1s;
    const Time started = now;
    session.on_probe_started(now);
    const Outcome out = session.on_probe_failed(
        started, Status(Code::kResourceExhausted, Origin::kLocal, "ports"), now);
    ASSERT_TRUE(out.has(Action::kScheduleProbe));
    EXPECT_LE(out.probe_at, now + 3 * options.probe_first_delay);
  }
}

}  // namespace
}  // namespace kvmend::health
