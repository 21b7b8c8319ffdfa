// Faults of links and peers, in simulation: nothing fails that needn't, everything ends in time.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/sim_engines.h"
#include "health/probe_schedule.h"
#include "session/health_options.h"
#include "transport/tcp/tcp_transport.h"

namespace kvmend::engine {
namespace {

using namespace std::chrono_literals;
using transport::tcp::make_tcp_transport;

constexpr std::size_t kKiB = 1024;

std::vector<FlightPtr> stream(SimEngine& from, SimEngine& to, std::size_t count, std::size_t bytes,
                              const FlightPlan& plan = {}) {
  std::vector<FlightPtr> flights;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t at = i * bytes % (from.pool().size() - bytes + 1);
    flights.push_back(
        from.submit(to, Opcode::kWrite, {{from.at(at), to.address(at), bytes}}, plan));
  }
  return flights;
}

void expect_all_ok(const std::vector<FlightPtr>& flights) {
  for (const FlightPtr& flight : flights) EXPECT_TRUE(flight->ok()) << flight->text();
}

class Recovery : public testing::Test {
 protected:
  explicit Recovery(std::uint64_t seed = 1, const env::sim::SimOptions& world = {})
      : engines_(make_tcp_transport, seed, world) {
    a_ = &engines_.add();
    b_ = &engines_.add();
    a_->fill(1);
  }
  void connect() {
    const FlightPtr first = a_->submit(*b_, Opcode::kWrite, {{a_->at(0), b_->address(0), 8}});
    ASSERT_TRUE(engines_.finish({first}));
    ASSERT_EQ(a_->state(*b_), "healthy");
  }
  void reset() {
    engines_.world().network().reset_connections(SimEngines::ip(0), SimEngines::ip(1));
  }
  [[nodiscard]] const health::HealthCounters& counters() {
    return a_->session(*b_)->health().counters();
  }

  SimEngines engines_;
  SimEngine* a_;
  SimEngine* b_;
};

// R1
TEST(RecoveryTest, AResetAtAnyMomentFailsNothing) {
  std::uint64_t retries = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SimEngines engines(make_tcp_transport, seed, {.bytes_per_second = 100e6});
    SimEngine& a = engines.add();
    SimEngine& b = engines.add();
    a.fill(seed);
    const std::vector<FlightPtr> flights = stream(a, b, 16, 64 * kKiB);
    engines.run_for(std::chrono::microseconds(300 * seed));
    engines.world().network().reset_connections(SimEngines::ip(0), SimEngines::ip(1));
    ASSERT_TRUE(engines.finish(flights)) << seed;
    expect_all_ok(flights);
    EXPECT_TRUE(a.pool() == b.pool()) << seed;
    EXPECT_EQ(a.session(b)->health().counters().blacklistings, 0U);
    retries += a.session(b)->info().retries;
  }
  EXPECT_GT(retries, 20U);
}

// R1, after every single event of a conversation that uses everything.
TEST(RecoveryTest, AResetAfterEveryEventOfAConversation) {
  for (std::size_t events = 1;; ++events) {
    SimEngines engines(make_tcp_transport, events, {.short_io_probability = 0.3});
    engines.options().chunk_bytes = 4096;
    SimEngine& a = engines.add(32 * kKiB);
    SimEngine& b = engines.add(32 * kKiB);
    a.fill(1);
    b.fill(2);
    const std::vector<std::byte> from_b(b.at(16 * kKiB), b.at(16 * kKiB) + 10'000);
    const std::vector<FlightPtr> flights{
        a.submit(b, Opcode::kWrite, {{a.at(0), b.address(0), 10'000}},
                 {.checksum = true, .notify = Notification{"n", "m"}}),
        a.submit(b, Opcode::kRead, {{a.at(16 * kKiB), b.address(16 * kKiB), 10'000}})};
    bool more = true;
    for (std::size_t i = 0; i < events && more; ++i)
      more = std::ranges::any_of(flights, [](const auto& f) { return !f->done(); }) &&
             engines.world().step();
    if (!more) break;
    engines.world().network().reset_connections(SimEngines::ip(0), SimEngines::ip(1));
    ASSERT_TRUE(engines.finish(flights, 10s)) << "after event " << events;
    for (const FlightPtr& flight : flights)
      ASSERT_TRUE(flight->ok()) << flight->text() << " after event " << events;
    ASSERT_EQ(std::memcmp(a.at(0), b.at(0), 10'000), 0) << "after event " << events;
    ASSERT_EQ(std::memcmp(a.at(16 * kKiB), from_b.data(), 10'000), 0) << "after event " << events;
    ASSERT_EQ(b.core().take_notifications().size(), 1U) << "after event " << events;
    ASSERT_EQ(a.session(b)->transfers(), 0U);
    ASSERT_EQ(a.session(b)->info().outstanding_bytes, 0U);
  }
}

// R2
TEST_F(Recovery, AShortageOfDescriptorsNeverCountsAgainstThePeer) {
  a_->process().set_descriptor_limit(1);  // its listener
  const std::vector<FlightPtr> flights = stream(*a_, *b_, 8, 4 * kKiB);
  engines_.run_for(3s);
  EXPECT_EQ(a_->state(*b_), "connecting");
  EXPECT_EQ(counters().strikes, 0U);
  EXPECT_EQ(counters().blacklistings, 0U);
  // It says nothing about the peer, but whoever waits is told why.
  EXPECT_NE(a_->session(*b_)->info().last_error.find("resource_exhausted"), std::string::npos);
  const FlightPtr late =
      a_->submit(*b_, Opcode::kWrite, {{a_->at(0), b_->address(0), 8}}, {.deadline = 100ms});
  ASSERT_TRUE(engines_.finish({late}));
  EXPECT_NE(late->text().find("last error: resource_exhausted"), std::string::npos) << late->text();
  a_->process().set_descriptor_limit(64);
  ASSERT_TRUE(engines_.finish(flights, 2s));
  expect_all_ok(flights);
}

// R2
TEST_F(Recovery, ThousandsOfTransfersNeedAHandfulOfPorts) {
  engines_.world().host(SimEngines::ip(0)).set_ephemeral_ports(40'000, 40'007);
  for (int round = 0; round < 5; ++round) {
    const std::vector<FlightPtr> flights = stream(*a_, *b_, 1'000, 100);
    reset();
    ASSERT_TRUE(engines_.finish(flights));
    expect_all_ok(flights);
  }
  EXPECT_EQ(counters().blacklistings, 0U);
}

// R9
TEST_F(Recovery, InvalidRequestsSayWhatIsWrongAndLeaveHealthAlone) {
  connect();
  const std::uint64_t epoch = a_->session(*b_)->info().epoch;
  const std::uint64_t end = b_->address(0) + b_->pool().size();
  for (std::size_t i = 0; i < 100; ++i) {
    const std::uint64_t remote = i % 2 == 0 ? end - 8 : 0x1000 + i;
    const FlightPtr flight = a_->submit(*b_, i % 3 == 0 ? Opcode::kRead : Opcode::kWrite,
                                        {{a_->at(0), b_->address(0), 8}, {a_->at(64), remote, 16}});
    ASSERT_TRUE(engines_.finish({flight}));
    EXPECT_EQ(flight->code(), i % 2 == 0 ? Code::kOutOfRange : Code::kNotRegistered);
    EXPECT_EQ(flight->result->origin(), Origin::kCaller);
    EXPECT_NE(flight->text().find(fmt::format("{:#x}", remote)), std::string::npos)
        << flight->text();
  }
  EXPECT_EQ(a_->state(*b_), "healthy");
  EXPECT_EQ(a_->session(*b_)->info().epoch, epoch);
  EXPECT_EQ(counters().strikes, 0U);
  EXPECT_EQ(a_->session(*b_)->health().in_flight(), 0U);
}

TEST_F(Recovery, ARegionThatWasJustRegisteredIsFound) {
  connect();
  std::vector<std::byte> fresh(100);
  b_->add_region(fresh.data(), fresh.size());
  const FlightPtr flight = a_->submit(
      *b_, Opcode::kWrite, {{a_->at(0), reinterpret_cast<std::uint64_t>(fresh.data()), 100}});
  ASSERT_TRUE(engines_.finish({flight}));
  EXPECT_TRUE(flight->ok()) << flight->text();
}

// R10
TEST(RecoveryTest, AFullQueueIsNoStrike) {
  SimEngines engines(make_tcp_transport, 2);
  engines.options().window_chunks = 4;
  SimEngine& a = engines.add();
  SimEngine& b = engines.add();
  const std::vector<FlightPtr> flights = stream(a, b, 1'000, 1'000);
  ASSERT_TRUE(engines.finish(flights));
  expect_all_ok(flights);
  EXPECT_EQ(a.session(b)->health().counters().strikes, 0U);
}

// R12, I1: whichever side is stopped in the middle of a stream.
class Pause : public testing::TestWithParam<std::tuple<bool, std::uint64_t>> {};

TEST_P(Pause, FiveSecondsFailNothingAndAreOverWithinASecond) {
  const auto [receiver, seed] = GetParam();
  SimEngines engines(make_tcp_transport, seed, {.bytes_per_second = 20e6});
  SimEngine& a = engines.add(4U << 20);
  SimEngine& b = engines.add(4U << 20);
  a.fill(seed);
  const std::vector<FlightPtr> flights = stream(a, b, 16, 256 * kKiB);
  engines.run_for(20ms + std::chrono::milliseconds(7 * seed));
  SimEngine& stopped = receiver ? b : a;
  stopped.process().pause();
  const auto done = static_cast<std::size_t>(
      std::ranges::count_if(flights, [](const auto& f) { return f->done(); }));
  ASSERT_LT(done, flights.size());
  engines.run_for(5s);
  // I1: what isn't in the receiver's memory isn't complete. (Acknowledgements may be on their way.)
  for (std::size_t i = 0; i < flights.size(); ++i) {
    if (!flights[i]->done()) continue;
    EXPECT_EQ(std::memcmp(a.at(i * 256 * kKiB), b.at(i * 256 * kKiB), 256 * kKiB), 0);
  }
  if (receiver) {
    EXPECT_EQ(a.state(b), "failed");
  }
  stopped.process().resume();
  ASSERT_TRUE(engines.run_until(
      [&] {
        return std::ranges::any_of(flights, [&](const auto& f) {
          return f->done() && f->ended_at > engines.world().now() - 1ms;
        });
      },
      1s));
  ASSERT_TRUE(engines.finish(flights, 2s));
  expect_all_ok(flights);
  EXPECT_TRUE(a.pool() == b.pool());
  ASSERT_TRUE(engines.run_until([&] { return a.state(b) == "healthy"; }, 1s));
}

INSTANTIATE_TEST_SUITE_P(Seeds, Pause,
                         testing::Combine(testing::Bool(), testing::Range<std::uint64_t>(0, 6)));

// R4
TEST(RecoveryTest, ABlackHoleDelaysNobodyElse) {
  std::vector<Duration> worst;
  for (const bool black_hole : {false, true}) {
    SimEngines engines(make_tcp_transport, 3);
    SimEngine& a = engines.add();
    for (int i = 0; i < 8; ++i) engines.add();
    std::vector<FlightPtr> first;
    for (std::size_t i = 1; i <= 8; ++i)
      first.push_back(a.submit(engines[i], Opcode::kWrite, {{a.at(0), engines[i].address(0), 8}}));
    ASSERT_TRUE(engines.finish(first));
    if (black_hole) engines.world().network().partition(SimEngines::ip(0), SimEngines::ip(8));
    std::vector<FlightPtr> dead;
    Duration slowest{};
    for (int round = 0; round < 200; ++round) {
      if (round % 20 == 0)
        dead.push_back(a.submit(engines[8], Opcode::kWrite,
                                {{a.at(0), engines[8].address(0), 64 * kKiB}}, {.deadline = 3s}));
      const Time from = engines.world().now();
      std::vector<FlightPtr> alive;
      for (std::size_t i = 1; i < 8; ++i)
        alive.push_back(
            a.submit(engines[i], Opcode::kWrite, {{a.at(0), engines[i].address(0), 16 * kKiB}}));
      ASSERT_TRUE(engines.finish(alive));
      expect_all_ok(alive);
      slowest = std::max(slowest, engines.world().now() - from);
      engines.run_for(25ms);
    }
    worst.push_back(slowest);
    ASSERT_TRUE(engines.finish(dead, 10s));
  }
  EXPECT_LT(worst[1], worst[0] * 2);
}

// R5
TEST(RecoveryTest, OneOfManyBlackHolesReturnsAsFastAsIfItWereAlone) {
  constexpr std::size_t kPeers = 30;
  SimEngines engines(make_tcp_transport, 4);
  SimEngine& a = engines.add();
  for (std::size_t i = 0; i < kPeers; ++i) engines.add(4096);
  std::vector<FlightPtr> flights;
  for (std::size_t i = 1; i <= kPeers; ++i)
    flights.push_back(a.submit(engines[i], Opcode::kWrite, {{a.at(0), engines[i].address(0), 8}}));
  ASSERT_TRUE(engines.finish(flights));
  for (std::size_t i = 1; i <= kPeers; ++i) {
    engines.world().network().partition(SimEngines::ip(0), SimEngines::ip(i));
    flights.push_back(a.submit(engines[i], Opcode::kWrite, {{a.at(0), engines[i].address(0), 64}},
                               {.deadline = 600s}));
  }
  engines.run_for(20s);
  engines.world().network().heal(SimEngines::ip(0), SimEngines::ip(7));
  const FlightPtr waiting = flights[kPeers + 6];
  ASSERT_TRUE(engines.run_until([&] { return waiting->done(); }, 1s));
  EXPECT_TRUE(waiting->ok()) << waiting->text();
}

// Rule 3: whatever the fault, every transfer ends in time.
enum class Kind : std::uint8_t { kBothWays, kThere, kBack, kPause, kKill, kPowerOff, kRefuse };
class Faults : public testing::TestWithParam<std::tuple<Kind, std::uint64_t>> {};

TEST_P(Faults, EveryTransferEndsInBoundedTime) {
  const auto [fault, seed] = GetParam();
  SimEngines engines(make_tcp_transport, seed, {.bytes_per_second = 20e6});
  SimEngine& a = engines.add();
  SimEngine& b = engines.add();
  const std::string ip_a = SimEngines::ip(0);
  const std::string ip_b = SimEngines::ip(1);
  std::vector<FlightPtr> flights = stream(a, b, 16, 64 * kKiB, {.deadline = 8s});
  flights.push_back(a.submit(b, Opcode::kRead, {{a.at(0), b.address(0), 64 * kKiB}},
                             {.deadline = 8s, .notify = Notification{"n", "m"}}));
  const Time deadline = engines.world().now() + 8s;
  engines.run_for(std::chrono::milliseconds(9 * seed));
  auto& network = engines.world().network();
  switch (fault) {
    case Kind::kBothWays:
      network.partition(ip_a, ip_b);
      break;
    case Kind::kThere:
      network.set_fault(ip_a, ip_b, {.drop_probability = 1});
      break;
    case Kind::kBack:
      network.set_fault(ip_b, ip_a, {.drop_probability = 1});
      break;
    case Kind::kPause:
      b.process().pause();
      break;
    case Kind::kKill:
      engines.kill(1);
      break;
    case Kind::kPowerOff:
      engines.world().host(ip_b).power_off();
      break;
    case Kind::kRefuse:
      network.set_fault(ip_a, ip_b, {.refuse_connections = true});
      network.reset_connections(ip_a, ip_b);
      break;
  }
  flights.push_back(
      a.submit_to({ip_b, SimEngines::kPort}, Opcode::kWrite, {{a.at(0), 8, 8}}, {.deadline = 8s}));
  ASSERT_TRUE(engines.finish(flights, 10s));
  EXPECT_LE(engines.world().now(), deadline + 50ms + std::chrono::milliseconds(9 * seed));
  for (const FlightPtr& flight : flights) {
    if (flight->ok()) continue;
    EXPECT_TRUE(flight->code() == Code::kSessionFailed || flight->code() == Code::kDeadlineExceeded)
        << flight->text();
  }
  EXPECT_EQ(a.core().sessions().find(ip_b + ":7000")->transfers(), 0U);
}

INSTANTIATE_TEST_SUITE_P(All, Faults,
                         testing::Combine(testing::Values(Kind::kBothWays, Kind::kThere,
                                                          Kind::kBack, Kind::kPause, Kind::kKill,
                                                          Kind::kPowerOff, Kind::kRefuse),
                                          testing::Values(0, 1, 3, 6)));

TEST_F(Recovery, ABlipShorterThanTheProgressDeadlineIsNotEvenARetry) {
  connect();
  const std::vector<FlightPtr> flights = stream(*a_, *b_, 16, 64 * kKiB);
  engines_.run_for(1ms);
  engines_.world().network().partition(SimEngines::ip(0), SimEngines::ip(1));
  engines_.run_for(200ms);
  engines_.world().network().heal(SimEngines::ip(0), SimEngines::ip(1));
  ASSERT_TRUE(engines_.finish(flights, 2s));
  expect_all_ok(flights);
  EXPECT_EQ(a_->session(*b_)->info().retries, 0U);
  EXPECT_EQ(counters().strikes, 0U);
}

// Found by ./dev bench recovery: the host of a stopped peer goes on taking small writes for
// seconds.
TEST_F(Recovery, AStoppedPeerIsNoticedUnderAStreamOfSmallWrites) {
  connect();
  b_->process().pause();
  const Time from = engines_.world().now();
  std::vector<FlightPtr> flights;
  while (a_->state(*b_) != "failed" && engines_.world().now() < from + 10s) {
    flights.push_back(a_->submit(*b_, Opcode::kWrite, {{a_->at(0), b_->address(0), 64}}));
    engines_.run_for(20ms);
  }
  EXPECT_LE(engines_.world().now() - from, 2500ms);
  b_->process().resume();
  ASSERT_TRUE(engines_.finish(flights, 2s));
  expect_all_ok(flights);
}

// Found by ./dev bench recovery: after 45 s the stopped process found 450 dead probes before ours.
TEST_F(Recovery, AStoppedPeerIsAskedOverFewConnections) {
  connect();
  b_->process().pause();
  const std::vector<FlightPtr> flights = stream(*a_, *b_, 8, 64 * kKiB, {.deadline = 60s});
  engines_.run_for(45s);
  EXPECT_EQ(a_->state(*b_), "failed");
  EXPECT_LE(counters().probes_started, 60U);
  b_->process().resume();
  const Time from = engines_.world().now();
  ASSERT_TRUE(engines_.finish(flights, 1s));
  expect_all_ok(flights);
  EXPECT_LE(engines_.world().now() - from, 150ms);
}

// The probe that waits at a stopped peer's host loses its connection meanwhile: the next one was
// put off on its account, and safety rule 4's bound holds all the same.
TEST(RecoveryTest, TheBoundHoldsWhenTheProbeThatOthersWaitedForIsLost) {
  const Duration bound = health::recovery_bound(
      1, session::to_health_options(EngineOptions{}.recovery), /*demanded=*/true);
  Duration slowest{};
  for (int tenth = 0; tenth < 12; ++tenth) {
    SimEngines engines(make_tcp_transport, 100 + static_cast<std::uint64_t>(tenth));
    SimEngine& a = engines.add();
    SimEngine& b = engines.add();
    const auto flights = stream(a, b, 1, 8);
    ASSERT_TRUE(engines.finish(flights));
    b.process().pause();
    const auto waiting = stream(a, b, 1, 8, {.deadline = 60s});
    ASSERT_TRUE(engines.run_until([&] { return a.state(b) == "failed"; }, 10s));
    engines.run_for(1s + tenth * 100ms);
    for (const auto& [from, to] : {std::pair(0, 1), std::pair(1, 0)})
      engines.world().network().set_fault(SimEngines::ip(from), SimEngines::ip(to),
                                          {.drop_probability = 1});
    b.process().resume();
    engines.run_for(300ms);  // its answers are lost
    engines.world().network().clear_all_faults();
    const Time clean = engines.world().now();
    ASSERT_TRUE(engines.run_until([&] { return a.state(b) != "failed"; }, bound));
    slowest = std::max(slowest, engines.world().now() - clean);
    ASSERT_TRUE(engines.finish(waiting, 1s));
    expect_all_ok(waiting);
  }
  EXPECT_GT(slowest, 100ms) << "no probe was put off";
}

// kvmend-sim --scenario kv_abort --seed 314: both sides probed each other over a slow link, each
// hello called for another probe, and among twenty of them none ended in time.
TEST(RecoveryTest, ProbesLeaveASlowLinkToTheOneThatIsUnderWay) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    SimEngines engines(make_tcp_transport, seed,
                       {.bytes_per_second = 150e3, .max_segment_bytes = 8192});
    SimEngine& a = engines.add();
    SimEngine& b = engines.add();
    const auto flights = [&](std::chrono::seconds deadline) {
      std::vector<FlightPtr> both = stream(a, b, 1, 8, {.deadline = deadline});
      for (FlightPtr& flight : stream(b, a, 1, 8, {.deadline = deadline})) both.push_back(flight);
      return both;
    };
    ASSERT_TRUE(engines.finish(flights(5s), 5s));
    engines.world().network().partition(SimEngines::ip(0), SimEngines::ip(1));
    const std::vector<FlightPtr> waiting = flights(60s);
    ASSERT_TRUE(
        engines.run_until([&] { return a.state(b) == "failed" && b.state(a) == "failed"; }, 10s));
    engines.run_for(5s);
    const std::uint64_t before = a.session(b)->health().counters().probes_started;
    engines.world().network().heal(SimEngines::ip(0), SimEngines::ip(1));
    ASSERT_TRUE(engines.finish(waiting, 2s));
    expect_all_ok(waiting);
    EXPECT_LE(a.session(b)->health().counters().probes_started - before, 4U) << seed;
  }
}

// With all that a slow link has to carry: what the host takes of it is progress.
TEST(RecoveryTest, ASlowLinkIsNotSilence) {
  SimEngines engines(make_tcp_transport, 5, {.bytes_per_second = 200e3, .max_segment_bytes = 8192});
  SimEngine& a = engines.add();
  SimEngine& b = engines.add();
  a.fill(1);
  // One chunk takes 2.6 seconds, more than the progress deadline.
  const std::vector<FlightPtr> flights = stream(a, b, 2, 512 * kKiB);
  ASSERT_TRUE(engines.finish(flights, 60s));
  expect_all_ok(flights);
  EXPECT_EQ(a.session(b)->health().counters().blacklistings, 0U);
}

// Found by ./dev bench recovery: pongs on the control lane excused a data lane that was dead.
TEST_F(Recovery, ADeadDataPathIsNoticedThoughTheControlPathAnswers) {
  connect();
  engines_.world().network().set_fault_between(SimEngines::ip(0), SimEngines::ip(1),
                                               {.drop_larger_than = 600});
  const Time from = engines_.world().now();
  const std::vector<FlightPtr> flights = stream(*a_, *b_, 4, 64 * kKiB);
  ASSERT_TRUE(engines_.run_until([&] { return a_->state(*b_) == "failed"; }, 10s));
  EXPECT_LE(engines_.world().now() - from, 2500ms);
  engines_.run_for(5s);
  EXPECT_EQ(a_->state(*b_), "failed");  // its probes carry data
  engines_.world().network().heal(SimEngines::ip(0), SimEngines::ip(1));
  ASSERT_TRUE(engines_.finish(flights, 1s));
  expect_all_ok(flights);
}

TEST_F(Recovery, OpenReturnsAsSoonAsABlacklistedPeerIsUsable) {
  connect();
  b_->process().pause();
  const FlightPtr parked = stream(*a_, *b_, 1, 64 * kKiB)[0];
  ASSERT_TRUE(engines_.run_until([&] { return a_->state(*b_) == "failed"; }, 5s));
  std::optional<Status> opened;
  a_->session(*b_)->open(a_->core().loop().now() + 30s, [&](const Status& s) { opened = s; });
  b_->process().resume();
  ASSERT_TRUE(engines_.run_until([&] { return opened.has_value(); }, 1s));
  EXPECT_TRUE(opened->is_ok()) << opened->to_string();
  ASSERT_TRUE(engines_.finish({parked}, 1s));
  EXPECT_TRUE(parked->ok());
}

TEST_F(Recovery, OpenOfADeadPeerEndsAtItsDeadlineAtTheLatest) {
  engines_.world().host(SimEngines::ip(1)).power_off();
  std::optional<Status> opened;
  const auto session = a_->core().sessions().find_or_create(b_->core().address());
  ASSERT_TRUE(session.has_value());
  (*session)->open(a_->core().loop().now() + 5s, [&](const Status& s) { opened = s; });
  ASSERT_TRUE(engines_.run_until([&] { return opened.has_value(); }, 6s));
  EXPECT_FALSE(opened->is_ok());
}

}  // namespace
}  // namespace kvmend::engine
