// The cases of the field that health decides, as timelines (see test_world.h).
#include <gtest/gtest.h>

#include "health/test_world.h"

namespace kvmend::health::testing {
namespace {

TEST(HealthCases, R1_AResetOfAHealthySessionCostsNoRequest) {
  World world(1);
  world.run(1s, 2ms);
  world.reset(0);
  world.run(1s, 2ms);
  world.run(50ms);
  Site& site = world.at(0);
  EXPECT_EQ(site.failed, 0U);
  EXPECT_EQ(site.done, 1'000U);
  EXPECT_EQ(site.health->state(), State::kHealthy);
  EXPECT_EQ(site.health->counters().strikes, 1U);
  EXPECT_EQ(site.health->counters().blacklistings, 0U);
}

TEST(HealthCases, R3_AKilledPeerIsSeenAtOnceAndItsSuccessorGetsNothingOfTheOldPlan) {
  World world(1);
  world.run(1s, 2ms);
  world.set(0, Peer::kRefusing);
  const Time killed = world.now;
  world.run(50ms);
  Site& site = world.at(0);
  ASSERT_EQ(site.health->state(), State::kFailed);
  EXPECT_LE(site.health->state_since() - killed, 50ms);
  EXPECT_EQ(site.health->last_cause().code(), Code::kConnectionRefused);
  world.run(3s, 20ms);
  world.restart(0);
  world.run(500ms, 20ms);
  EXPECT_EQ(site.health->state(), State::kHealthy);
  EXPECT_EQ(site.health->counters().restarts, 1U);
  EXPECT_EQ(site.health->peer(), site.incarnation);
  EXPECT_EQ(site.recoveries.size(), 1U);
  EXPECT_LE(site.first_done_after_fault - site.fault_ended, 500ms);
}

TEST(HealthCases, R5_OneOfFiftyBlackHolesIsBackAsFastAsIfItWereAlone) {
  World world(56);  // and six that work
  world.run(100ms);
  for (std::size_t i = 0; i < 50; ++i) world.set(i, Peer::kBlackHole);
  for (std::size_t i = 0; i < 50; ++i) world.submit(i, 60s);
  world.run(20s);
  for (std::size_t i = 0; i < 50; ++i) ASSERT_EQ(world.at(i).health->state(), State::kFailed);
  world.set(17, Peer::kUp);
  world.run(500ms);
  Site& site = world.at(17);
  EXPECT_LE(site.first_done_after_fault - site.fault_ended, 300ms);
  EXPECT_EQ(site.failed, 0U);
  EXPECT_LE(world.budget.in_flight(), world.options.probe_max_in_flight);
}

TEST(HealthCases, R8_AFlappingPeerIsTrustedLessEachTimeAndSteadyAgainFullyLater) {
  World world(1);
  world.run(1s, 5ms);
  Site& site = world.at(0);
  std::vector<std::uint32_t> needed;
  std::vector<Duration> probation;
  std::vector<std::size_t> exposed;  // requests in flight when the peer went dark
  for (int flap = 0; flap < 10; ++flap) {
    exposed.push_back(0);
    world.run(5s, 5ms);
    exposed.back() = site.flying.size();
    world.set(0, Peer::kBlackHole);
    world.run(5s, 100ms);
    needed.push_back(site.health->trial_needed());
    probation.push_back(site.health->probation());
    world.set(0, Peer::kUp);
  }
  EXPECT_EQ(needed.front(), 3U);
  EXPECT_TRUE(std::ranges::is_sorted(needed));
  EXPECT_TRUE(std::ranges::is_sorted(probation));
  EXPECT_EQ(needed.back(), world.options.trial_max_transfers);
  EXPECT_EQ(probation.back(), world.options.probation_max);
  EXPECT_LE(exposed.back(), world.options.trial_concurrency);
  EXPECT_EQ(site.failed, 0U);

  world.run(world.options.probation_max + 30s * 20, 100ms);  // steady: the penalty is outlived
  ASSERT_EQ(site.health->state(), State::kHealthy);
  world.set(0, Peer::kRefusing);
  world.run(20ms);
  EXPECT_EQ(site.health->trial_needed(), 3U);
}

TEST(HealthCases, R9_R10_MistakesAndFullQueuesLeaveHealthAsItIs) {
  World world(1);
  world.run(100ms);
  SessionHealth& health = *world.at(0).health;
  for (int i = 0; i < 1'000; ++i) {
    const Status invalid(Code::kInvalidArgument, Origin::kCaller, "zero length");
    const Status full(Code::kResourceExhausted, Origin::kLocal, "queue of depth 4");
    EXPECT_TRUE(
        health.on_failure({invalid, health.attempt(), world.now}, world.now).actions.empty());
    EXPECT_TRUE(health.on_failure({full, health.attempt(), world.now}, world.now).actions.empty());
  }
  EXPECT_EQ(health.state(), State::kHealthy);
  EXPECT_EQ(health.counters().strikes, 0U);
  EXPECT_EQ(health.counters().ignored_failures, 2'000U);
}

TEST(HealthCases, R11_ABlacklistedRankHoldsThePairUntilItIsBack) {
  World world(2);
  world.run(100ms);
  world.set(1, Peer::kRefusing);
  world.run(100ms);
  std::vector<SessionHealth*> pair{world.at(0).health.get(), world.at(1).health.get()};
  EXPECT_EQ(admit_pair(pair).verdict, Admission::Verdict::kPark);
  world.set(1, Peer::kUp);
  world.run(7s, 50ms, 1);
  const PairAdmission admission = admit_pair(pair);
  EXPECT_EQ(admission.verdict, Admission::Verdict::kDispatch);
  EXPECT_EQ(admission.tickets.size(), 2U);
}

TEST(HealthCases, R12_AStoppedPeerIsBlacklistedMeanwhileAndBackWithinASecond) {
  World world(1);
  world.run(1s, 10ms);
  Site& site = world.at(0);
  world.set(0, Peer::kStopped);
  const Time stopped = world.now;
  world.run(5s, 10ms);
  EXPECT_EQ(site.health->state(), State::kFailed);
  EXPECT_LE(site.health->state_since() - stopped, world.options.progress_deadline + 500ms);
  world.set(0, Peer::kUp);
  world.run(1s, 10ms);
  world.run(50ms);
  EXPECT_EQ(site.health->state(), State::kHealthy);
  EXPECT_EQ(site.failed, 0U);
  EXPECT_EQ(site.done, 700U);
  ASSERT_EQ(site.recoveries.size(), 1U);
  EXPECT_LE(site.first_done_after_fault - site.fault_ended, 200ms);
}

TEST(HealthCases, ALongBlackHoleIsLeftWithinHalfASecondOfItsEnd) {
  World world(1);
  world.run(1s, 10ms);
  world.set(0, Peer::kBlackHole);
  world.run(45s, 500ms);
  Site& site = world.at(0);
  world.set(0, Peer::kUp);
  world.run(1s, 10ms);
  EXPECT_LE(site.first_done_after_fault - site.fault_ended, 500ms);
}

TEST(HealthCases, AnIdleSessionsSilenceIsSeenByItsHeartbeat) {
  World world(1);
  world.run(3s);
  world.set(0, Peer::kBlackHole);
  const Time cut = world.now;
  world.run(5s);
  Site& site = world.at(0);
  EXPECT_EQ(site.health->state(), State::kFailed);
  EXPECT_LE(site.health->state_since() - cut,
            world.options.heartbeat_interval + world.options.progress_deadline + 100ms);
  world.set(0, Peer::kUp);  // nobody asks: data probes serve the trial
  world.run(12s);
  EXPECT_EQ(site.health->state(), State::kHealthy);
  EXPECT_EQ(site.recoveries.size(), 1U);
}

TEST(HealthCases, WhenAllPeersVanishNothingFailsFasterThanItsDeadline) {
  HealthOptions options;
  options.policy = ParkPolicy::kFailFast;
  World world(8, options);
  world.run(1s);
  for (std::size_t i = 0; i < 8; ++i) world.set(i, Peer::kRefusing);
  world.run(100ms);
  EXPECT_TRUE(world.ejection.view().suspected);
  for (std::size_t i = 0; i < 8; ++i) world.submit(i, 10s);
  world.run(1s);
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(world.at(i).failed, 0U);
    world.set(i, Peer::kUp);
  }
  world.run(5s);
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(world.at(i).done, 1U);
  EXPECT_FALSE(world.ejection.view().suspected);
}

TEST(HealthCases, AStopOfOurOwnBlamesNobody) {
  const HealthOptions options;
  ProgressWatch watch;
  Time now = Time{} + 1h;
  watch.begin(now);
  now += 5s;
  watch.forgive(now);
  EXPECT_EQ(watch.deadline(options, 1), now + options.progress_deadline);
  EXPECT_EQ(watch.deadline(options, 3), now + 3 * options.progress_deadline);
  watch.end();
  EXPECT_EQ(watch.deadline(options, 3), kForever);
}

}  // namespace
}  // namespace kvmend::health::testing
