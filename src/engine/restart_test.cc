// Another process answers at the address: nothing of the old plan reaches it (rule 3 of the
// epochs).
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/sim_engines.h"
#include "transport/tcp/tcp_transport.h"

namespace kvmend::engine {
namespace {

using namespace std::chrono_literals;
using transport::tcp::make_tcp_transport;

constexpr std::size_t kKiB = 1024;

struct News final : CoreObserver {
  std::vector<std::pair<Incarnation, Incarnation>> incarnations;
  std::vector<std::string> upper;
  void on_upper(const std::string&, Incarnation, std::uint32_t, Bytes body) override {
    upper.emplace_back(reinterpret_cast<const char*>(body.data()), body.size());
  }
  void on_peer_incarnation(const std::string&, Incarnation before, Incarnation now) override {
    incarnations.emplace_back(before, now);
  }
  void on_session_state(const std::string&, std::string_view, std::string_view,
                        const Status&) override {}
  void on_grant_expired(const memory::Grant&) override {}
};

Status send(SimEngine& from, SimEngine& to, const std::string& text, Incarnation target = {}) {
  return from.core().send_upper(to.core().address(), target, 1,
                                std::as_bytes(std::span(text.data(), text.size())));
}

// R3
class Restart : public testing::TestWithParam<std::uint64_t> {};

TEST_P(Restart, NothingOfTheOldPlanLandsInTheNewProcess) {
  const std::uint64_t seed = GetParam();
  SimEngines engines(make_tcp_transport, seed, {.bytes_per_second = 50e6});
  SimEngine& a = engines.add();
  engines.add();
  a.fill(1);
  const Incarnation old = engines[1].core().incarnation();
  std::vector<FlightPtr> flights;
  for (std::size_t i = 0; i < 16; ++i)
    flights.push_back(
        a.submit(engines[1], Opcode::kWrite,
                 {{a.at(i * 64 * kKiB), engines[1].address(i * 64 * kKiB), 64 * kKiB}}));
  engines.run_for(std::chrono::milliseconds(2 * seed));
  const std::uint64_t old_address = engines[1].address(0);
  engines.kill(1);
  engines.run_for(std::chrono::milliseconds(seed % 3 * 200));
  SimEngine& b = engines.restart(1);
  // The worst case: the new process has registered the very addresses of the old one.
  std::vector<std::byte> own(256 * kKiB, std::byte{9});
  b.add_region(own.data(), own.size());
  const std::vector<std::byte> before = b.pool();
  ASSERT_TRUE(engines.finish(flights, 10s));
  bool failed = false;
  for (const FlightPtr& flight : flights) {
    if (flight->ok()) continue;
    failed = true;
    EXPECT_EQ(flight->code(), Code::kPeerRestarted) << flight->text();
    EXPECT_NE(flight->text().find("peer restarted"), std::string::npos) << flight->text();
  }
  EXPECT_TRUE(failed);
  // Raw users must say that they know of the new process.
  const FlightPtr blind = a.submit(b, Opcode::kWrite, {{a.at(0), b.address(0), 64}});
  const FlightPtr stale = a.submit(b, Opcode::kWrite, {{a.at(0), old_address, 64}});
  ASSERT_TRUE(engines.finish({blind, stale}));
  EXPECT_EQ(blind->code(), Code::kPeerRestarted) << blind->text();
  EXPECT_EQ(stale->code(), Code::kPeerRestarted) << stale->text();
  EXPECT_TRUE(b.pool() == before);
  std::optional<Status> opened;
  a.session(b)->open(a.core().loop().now() + 5s, [&](const Status& s) { opened = s; });
  ASSERT_TRUE(engines.run_until([&] { return opened.has_value(); }, 5s));
  ASSERT_TRUE(opened->is_ok()) << opened->to_string();
  const FlightPtr fresh = a.submit(b, Opcode::kWrite, {{a.at(0), b.address(0), 64}});
  const FlightPtr meant_for_old =
      a.submit(b, Opcode::kWrite, {{a.at(0), b.address(0), 64}}, {.target = old});
  ASSERT_TRUE(engines.finish({fresh, meant_for_old}));
  EXPECT_TRUE(fresh->ok()) << fresh->text();
  EXPECT_EQ(meant_for_old->code(), Code::kPeerRestarted);
  EXPECT_TRUE(std::ranges::all_of(own, [](std::byte x) { return x == std::byte{9}; }));
}

INSTANTIATE_TEST_SUITE_P(Seeds, Restart, testing::Range<std::uint64_t>(1, 10));

// R6
TEST(RestartTest, ASwappedProcessIsNoticedWithinAHeartbeatWithoutTraffic) {
  SimEngines engines(make_tcp_transport, 1);
  SimEngine& a = engines.add();
  engines.add();
  News news;
  a.core().add_observer(&news);
  const FlightPtr first =
      a.submit(engines[1], Opcode::kWrite, {{a.at(0), engines[1].address(0), 8}});
  ASSERT_TRUE(engines.finish({first}));
  engines.run_for(5s);
  const Incarnation old = engines[1].core().incarnation();
  SimEngine& b = engines.restart(1);
  ASSERT_TRUE(engines.run_until([&] { return news.incarnations.size() == 2; }, 1200ms));
  EXPECT_EQ(news.incarnations[1].first, old);
  EXPECT_EQ(news.incarnations[1].second, b.core().incarnation());
  a.core().remove_observer(&news);
}

// Anyone who can connect can take a peer's name. What he says only makes us ask there.
TEST(RestartTest, AStrangerInAPeersNameDisturbsNothing) {
  SimEngines engines(make_tcp_transport, 8, {.bytes_per_second = 50e6});
  SimEngine& a = engines.add();
  SimEngine& b = engines.add();
  engines.options().advertise = b.core().session_id();
  SimEngine& stranger = engines.add();
  News news;
  a.core().add_observer(&news);
  a.fill(1);
  const FlightPtr first = a.submit(b, Opcode::kWrite, {{a.at(0), b.address(0), 8}});
  ASSERT_TRUE(engines.finish({first}));
  std::vector<FlightPtr> flights;
  for (std::size_t i = 0; i < 16; ++i)
    flights.push_back(
        a.submit(b, Opcode::kWrite, {{a.at(i * 64 * kKiB), b.address(i * 64 * kKiB), 64 * kKiB}}));
  ASSERT_TRUE(send(stranger, a, "in the name of another").is_ok());
  engines.run_for(5ms);
  EXPECT_EQ(news.upper.size(), 1U);
  std::optional<Status> probed;
  stranger.core().sessions().probe(a.core().address(), stranger.core().loop().now() + 1s,
                                   [&](const session::ProbeResult& r) { probed = r.status; });
  ASSERT_TRUE(engines.run_until([&] { return probed.has_value(); }, 1s));
  stranger.core().shutdown(1ms, {});  // its goodbye is in b's name too
  ASSERT_TRUE(engines.finish(flights));
  for (const FlightPtr& flight : flights) EXPECT_TRUE(flight->ok()) << flight->text();
  engines.run_for(5s);
  EXPECT_EQ(a.state(b), "healthy");
  EXPECT_EQ(a.session(b)->info().retries, 0U);
  EXPECT_EQ(news.incarnations.size(), 1U);
  a.core().remove_observer(&news);
}

// The same word, when it is true: the answer to the question it makes us ask brings the session
// back long before a heartbeat would have.
TEST(RestartTest, TheHelloOfANewProcessBringsItsSessionBackAtOnce) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    SimEngines engines(make_tcp_transport, seed);
    SimEngine& a = engines.add();
    engines.add();
    News news;
    a.core().add_observer(&news);
    const FlightPtr first =
        a.submit(engines[1], Opcode::kWrite, {{a.at(0), engines[1].address(0), 8}});
    ASSERT_TRUE(engines.finish({first}));
    engines.run_for(5s);
    engines.world().network().partition(SimEngines::ip(0), SimEngines::ip(1));
    engines.kill(1);  // nothing tells that it has died
    SimEngine& b = engines.restart(1);
    engines.world().network().heal(SimEngines::ip(0), SimEngines::ip(1));
    const Time before = engines.world().now();
    ASSERT_TRUE(send(b, a, "hello").is_ok());
    ASSERT_TRUE(engines.run_until([&] { return news.incarnations.size() == 2; }, 1s));
    EXPECT_LT(engines.world().now() - before, 50ms) << seed;
    EXPECT_EQ(news.incarnations[1].second, b.core().incarnation());
    ASSERT_TRUE(engines.run_until([&] { return a.state(b) == "healthy"; }, 50ms));
    a.core().remove_observer(&news);
  }
}

// Planned for a process that was gone before this engine ever spoke to it.
TEST(RestartTest, AFirstContactWithAnotherProcessThanMeantGetsNothing) {
  SimEngines engines(make_tcp_transport, 2);
  SimEngine& a = engines.add();
  SimEngine& b = engines.add();
  News news;
  b.core().add_observer(&news);
  const std::vector<std::byte> before = b.pool();
  a.fill(1);
  const Incarnation gone(b.core().incarnation().value ^ 1);
  const FlightPtr raw =
      a.submit(b, Opcode::kWrite, {{a.at(0), b.address(0), 64}}, {.target = gone});
  const FlightPtr pieces = a.submit_pieces(b, Opcode::kWrite, memory::kStandingGrant,
                                           {{a.at(0), b.region(), 0, 64}}, {.target = gone});
  ASSERT_TRUE(send(a, b, "for the dead", gone).is_ok());
  ASSERT_TRUE(engines.finish({raw, pieces}, 5s));
  EXPECT_EQ(raw->code(), Code::kPeerRestarted) << raw->text();
  EXPECT_EQ(pieces->code(), Code::kPeerRestarted) << pieces->text();
  engines.run_for(1s);
  EXPECT_TRUE(b.pool() == before);
  EXPECT_TRUE(news.upper.empty());
  ASSERT_TRUE(send(a, b, "for the living", b.core().incarnation()).is_ok());
  EXPECT_EQ(send(a, b, "too late", gone).code(), Code::kPeerRestarted);
  engines.run_for(1s);
  EXPECT_EQ(news.upper, std::vector<std::string>{"for the living"});
  b.core().remove_observer(&news);
}

TEST(RestartTest, ControlMessagesArriveOnceAndInOrderThroughResets) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SimEngines engines(make_tcp_transport, seed);
    SimEngine& a = engines.add();
    SimEngine& b = engines.add();
    News news;
    b.core().add_observer(&news);
    std::vector<std::string> sent;
    for (int i = 0; i < 30; ++i) {
      sent.push_back(std::to_string(i));
      ASSERT_TRUE(send(a, b, sent.back()).is_ok());
      engines.run_for(std::chrono::microseconds(50 + seed * 13));
      if (i % 7 == 3)
        engines.world().network().reset_connections(SimEngines::ip(0), SimEngines::ip(1));
    }
    ASSERT_TRUE(engines.run_until([&] { return news.upper.size() >= 30; }, 10s)) << seed;
    engines.run_for(1s);
    EXPECT_EQ(news.upper, sent) << seed;
    b.core().remove_observer(&news);
  }
}

// The numbers go on where the retired session stopped.
TEST(RestartTest, ControlMessagesOfASessionThatWasRetiredAndCameAgain) {
  SimEngines engines(make_tcp_transport, 3);
  engines.options().recovery.idle_timeout = 2s;
  SimEngine& a = engines.add();
  SimEngine& b = engines.add();
  News news;
  b.core().add_observer(&news);
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(send(a, b, "first").is_ok());
  ASSERT_TRUE(engines.run_until([&] { return news.upper.size() == 5; }, 5s));
  ASSERT_TRUE(engines.run_until([&] { return a.core().sessions().size() == 0; }, 10s));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(send(a, b, "second").is_ok());
  engines.run_for(1s);
  ASSERT_EQ(news.upper.size(), 8U);
  EXPECT_EQ(news.upper.back(), "second");
  b.core().remove_observer(&news);
}

// A session that the peer remembers (its epochs are used up to 2) begins anew, with epoch 1, in the
// middle of a partition: the one handshake after it is refused as stale, in the trial.
TEST(RestartTest, ASessionThatWasRetiredComesBackAfterAPartition) {
  SimEngines engines(make_tcp_transport, 5);
  engines.options().recovery.idle_timeout = 2s;
  SimEngine& a = engines.add();
  SimEngine& b = engines.add();
  const auto write = [&](Duration deadline) {
    return a.submit(b, Opcode::kWrite, {{a.at(0), b.address(0), 64}}, {.deadline = deadline});
  };
  for (int epoch = 0; epoch < 4; ++epoch) {
    ASSERT_TRUE(engines.finish({write(5s)}));
    engines.world().network().reset_connections(SimEngines::ip(0), SimEngines::ip(1));
    engines.run_for(1s);
  }
  ASSERT_TRUE(engines.run_until([&] { return a.core().sessions().size() == 0; }, 20s));
  engines.world().network().partition(SimEngines::ip(0), SimEngines::ip(1));
  const FlightPtr parked = write(30s);
  engines.run_for(6s);
  ASSERT_EQ(a.state(b), "failed") << parked->text();
  engines.world().network().heal(SimEngines::ip(0), SimEngines::ip(1));
  ASSERT_TRUE(engines.finish({parked}));
  EXPECT_TRUE(parked->ok()) << parked->text();
}

// R7
TEST(RestartTest, FiftyRestartsUnderLoadLeaveNothingBehind) {
  SimEngines engines(make_tcp_transport, 4);
  SimEngine& a = engines.add();
  engines.add();
  std::size_t ok = 0;
  for (int i = 0; i < 50; ++i) {
    SimEngine& b = engines.restart(1, 64 * kKiB);
    const Incarnation target = b.core().incarnation();
    std::vector<FlightPtr> flights;
    for (std::size_t k = 0; k < 8; ++k)
      flights.push_back(a.submit_pieces(b, Opcode::kWrite, memory::kStandingGrant,
                                        {{a.at(0), b.region(), 0, 64 * kKiB}}, {.target = target}));
    ASSERT_TRUE(engines.finish(flights, 60s));
    ok += static_cast<std::size_t>(std::ranges::count_if(flights, [](auto& f) { return f->ok(); }));
    engines.run_for(std::chrono::milliseconds(i * 37 % 1000));
  }
  EXPECT_GT(ok, 0U);
  engines.run_for(40s);
  EXPECT_EQ(a.core().sessions().size(), 1U);
  EXPECT_LE(a.process().open_descriptors(), 1U + 2U);
  EXPECT_EQ(a.core().stats().inbound_lanes, 0U);
}

}  // namespace
}  // namespace kvmend::engine
