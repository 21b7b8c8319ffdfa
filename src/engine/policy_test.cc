// What happens to requests of a blacklisted session, by policy; and recovery without probes.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/sim_engines.h"
#include "transport/tcp/tcp_transport.h"

namespace kvmend::engine {
namespace {

using namespace std::chrono_literals;
using transport::tcp::make_tcp_transport;

class Policy : public testing::Test {
 protected:
  Policy() : engines_(make_tcp_transport, 1) {}

  void start() {
    a_ = &engines_.add();
    b_ = &engines_.add();
    a_->fill(1);
    const FlightPtr first = write(30s);
    ASSERT_TRUE(engines_.finish({first}));
    ASSERT_TRUE(first->ok()) << first->text();
  }
  FlightPtr write(Duration deadline) {
    return a_->submit(*b_, Opcode::kWrite, {{a_->at(0), b_->address(0), 64}},
                      {.deadline = deadline});
  }
  void cut() {
    engines_.world().network().set_fault(SimEngines::ip(0), SimEngines::ip(1),
                                         {.drop_probability = 1});
  }
  bool until_state(std::string_view state, Duration limit) {
    return engines_.run_until([&] { return a_->state(*b_) == state; }, limit);
  }
  Time now() { return engines_.world().now(); }

  SimEngines engines_;
  SimEngine* a_ = nullptr;
  SimEngine* b_ = nullptr;
};

TEST_F(Policy, FailFastEndsRequestsAtOnceWithTheSessionsReason) {
  engines_.options().recovery.policy = FailedSessionPolicy::kFailFast;
  start();
  cut();
  const FlightPtr victim = write(30s);
  ASSERT_TRUE(engines_.finish({victim}, 10s));
  EXPECT_EQ(a_->state(*b_), "failed");
  const FlightPtr next = write(30s);
  ASSERT_TRUE(next->done());
  for (const FlightPtr& flight : {victim, next}) {
    EXPECT_EQ(flight->code(), Code::kSessionFailed) << flight->text();
    EXPECT_EQ(flight->result->origin(), Origin::kPeer);
    EXPECT_NE(flight->text().find("took no byte"), std::string::npos) << flight->text();
  }
  engines_.world().network().clear_all_faults();
  ASSERT_TRUE(until_state("healthy", 10s));  // nobody asks: data probes serve the trial
  const FlightPtr after = write(30s);
  ASSERT_TRUE(engines_.finish({after}));
  EXPECT_TRUE(after->ok()) << after->text();
}

TEST_F(Policy, ParkMaxEndsTheWaitBeforeTheDeadline) {
  engines_.options().recovery.park_max = 700ms;
  start();
  cut();
  const FlightPtr victim = write(60s);
  ASSERT_TRUE(until_state("failed", 10s));
  const Time failed = now();
  const FlightPtr parked = write(60s);
  const FlightPtr shorter = write(200ms);
  ASSERT_TRUE(engines_.finish({victim, parked, shorter}, 10s));
  EXPECT_GE(parked->ended_at - failed, 700ms);
  EXPECT_LE(parked->ended_at - failed, 720ms);
  EXPECT_LE(victim->ended_at - failed, 720ms);
  EXPECT_LE(shorter->ended_at - failed, 220ms);
  for (const FlightPtr& flight : {victim, parked, shorter})
    EXPECT_EQ(flight->code(), Code::kSessionFailed) << flight->text();
}

// A peer that falls silent is given time; once its host refuses connections its process is gone,
// and what waits already need not wait longer than what comes from then on.
TEST_F(Policy, NewsThatThePeerIsGoneShortensTheWaitOfWhatIsParkedAlready) {
  engines_.options().recovery.park_max = 20s;
  engines_.options().recovery.refused_park_max = 500ms;
  start();
  cut();
  const FlightPtr victim = write(60s);
  ASSERT_TRUE(until_state("failed", 10s));
  const FlightPtr parked = write(60s);
  const FlightPtr shorter = write(300ms);
  engines_.run_for(200ms);
  const Address gone = b_->core().address();
  engines_.kill(1);
  engines_.world().network().clear_all_faults();
  const Time killed = now();
  ASSERT_TRUE(engines_.finish({victim, parked, shorter}, 10s));
  for (const FlightPtr& flight : {victim, parked}) {
    EXPECT_EQ(flight->code(), Code::kSessionFailed) << flight->text();
    EXPECT_GE(flight->ended_at - killed, 500ms);
    EXPECT_LE(flight->ended_at - killed, 2s) << "a probe that waits there, then the refusal";
  }
  EXPECT_LE(shorter->ended_at - killed, 120ms) << "never longer than it had";
  const FlightPtr next =
      a_->submit_to(gone, Opcode::kWrite, {{a_->at(0), 0, 64}}, {.deadline = 60s});
  const Time asked = now();
  ASSERT_TRUE(engines_.finish({next}, 10s));
  EXPECT_LE(next->ended_at - asked, 520ms) << next->text();
}

// A relapse of the trial gives no second wait.
TEST_F(Policy, ARelapseDoesntLengthenTheWait) {
  engines_.options().recovery.park_max = 8s;
  start();
  cut();
  const FlightPtr victim = write(60s);
  ASSERT_TRUE(until_state("failed", 10s));
  const Time failed = now();
  std::vector<FlightPtr> parked;
  for (int i = 0; i < 64; ++i) parked.push_back(write(60s));
  engines_.run_for(4s);
  engines_.world().network().clear_all_faults();
  ASSERT_TRUE(until_state("probing", 3s));
  cut();
  ASSERT_TRUE(until_state("failed", 10s));
  engines_.run_until([&] { return parked.back()->done(); }, 60s);
  EXPECT_LE(parked.back()->ended_at - failed, 8020ms) << parked.back()->text();
}

// Switched off, nothing is probed, and no amount of time lifts a blacklist; the peer's hello does.
TEST_F(Policy, WithoutProbesThePeersHelloLiftsABlacklist) {
  engines_.options().recovery.probe = false;
  start();
  cut();
  const FlightPtr victim = write(20s);
  ASSERT_TRUE(until_state("failed", 10s));
  engines_.run_for(1s);
  engines_.world().network().clear_all_faults();
  engines_.run_for(60s);
  EXPECT_EQ(a_->state(*b_), "failed");
  EXPECT_EQ(victim->code(), Code::kSessionFailed) << victim->text();
  EXPECT_EQ(a_->core().stats().probes_ok + a_->core().stats().probes_failed, 0U);
  const FlightPtr waiting = write(30s);
  const FlightPtr other_way = b_->submit(*a_, Opcode::kWrite, {{b_->at(0), a_->address(0), 64}});
  ASSERT_TRUE(engines_.finish({waiting, other_way}, 1s));
  EXPECT_TRUE(waiting->ok()) << waiting->text();
  EXPECT_EQ(a_->core().stats().probes_ok, 1U);
}

TEST_F(Policy, WithoutProbesANewRegistrationLiftsABlacklist) {
  engines_.options().recovery.probe = false;
  start();
  cut();
  const FlightPtr victim = write(20s);
  ASSERT_TRUE(until_state("failed", 10s));
  engines_.world().network().clear_all_faults();
  a_->session(*b_)->on_new_registration(b_->core().incarnation());
  ASSERT_TRUE(engines_.finish({victim}, 1s));
  EXPECT_TRUE(victim->ok()) << victim->text();
}

// Never all at once: when most peers seem dead, the fault is probably here. Nobody is failed before
// its deadline then, whatever the policy, and probes go on.
TEST_F(Policy, AnEngineThatLosesMostPeersSuspectsItselfAndFailsNothingFast) {
  engines_.options().recovery.policy = FailedSessionPolicy::kFailFast;
  start();
  std::vector<SimEngine*> peers{b_};
  for (int i = 0; i < 3; ++i) peers.push_back(&engines_.add());
  const auto write_to_all = [&](Duration deadline) {
    std::vector<FlightPtr> flights;
    for (SimEngine* peer : peers)
      flights.push_back(a_->submit(*peer, Opcode::kWrite, {{a_->at(0), peer->address(0), 64}},
                                   {.deadline = deadline}));
    return flights;
  };
  ASSERT_TRUE(engines_.finish(write_to_all(30s)));
  for (std::size_t i = 1; i <= peers.size(); ++i)
    engines_.world().network().set_fault_between(SimEngines::ip(0), SimEngines::ip(i),
                                                 {.drop_probability = 1});
  static_cast<void>(write_to_all(30s));
  ASSERT_TRUE(engines_.run_until(
      [&] {
        return std::ranges::all_of(peers, [&](SimEngine* p) { return a_->state(*p) == "failed"; });
      },
      10s));
  const std::uint64_t probes = a_->core().stats().probes_failed;
  const auto waiting = write_to_all(60s);
  engines_.run_for(10s);
  for (const FlightPtr& flight : waiting) EXPECT_FALSE(flight->done()) << flight->text();
  EXPECT_GT(a_->core().stats().probes_failed, probes);
  engines_.world().network().clear_all_faults();
  ASSERT_TRUE(engines_.finish(waiting, 10s));
  for (const FlightPtr& flight : waiting) EXPECT_TRUE(flight->ok()) << flight->text();
}

}  // namespace
}  // namespace kvmend::engine
