// Case R11: transfers of one request to several ranks are admitted, parked and ended as one.
#include <gmock/gmock.h>

#include "engine/sim_engines.h"
#include "transport/tcp/tcp_transport.h"

namespace kvmend::engine {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using transport::tcp::make_tcp_transport;

class Pair : public testing::Test {
 protected:
  Pair() : engines_(make_tcp_transport, 1) {}

  void start() {
    a_ = &engines_.add();
    ranks_ = {&engines_.add(), &engines_.add()};
    a_->fill(1);
    const auto first = request(30s);
    ASSERT_TRUE(engines_.finish(first));
    for (const FlightPtr& flight : first) ASSERT_TRUE(flight->ok()) << flight->text();
  }
  /// One write to each rank.
  std::vector<FlightPtr> request(Duration deadline) {
    const auto group = std::make_shared<session::TransferGroup>();
    std::vector<FlightPtr> flights;
    for (SimEngine* rank : ranks_) {
      auto flight = a_->prepare(*rank, {{a_->at(0), rank->address(0), 64}}, {.deadline = deadline});
      flight->state->group = group;
      group->members.push_back(flight->state);
      flights.push_back(flight);
    }
    for (const FlightPtr& flight : flights) a_->core().submit(flight->state);
    return flights;
  }
  void cut(std::size_t rank) {
    engines_.world().network().set_fault(SimEngines::ip(0), SimEngines::ip(rank + 1),
                                         {.drop_probability = 1});
  }
  void mend() { engines_.world().network().clear_all_faults(); }
  /// Has a request of its own find out that the rank is gone.
  FlightPtr lose(std::size_t rank, Duration deadline = 30s) {
    cut(rank);
    const FlightPtr victim =
        a_->submit(*ranks_[rank], Opcode::kWrite, {{a_->at(0), ranks_[rank]->address(64), 64}},
                   {.deadline = deadline});
    EXPECT_TRUE(engines_.run_until([&] { return a_->state(*ranks_[rank]) == "failed"; }, 10s));
    return victim;
  }
  [[nodiscard]] std::uint64_t written(std::size_t rank) {
    return a_->session(*ranks_[rank])->info().bytes_written;
  }

  SimEngines engines_;
  SimEngine* a_ = nullptr;
  std::vector<SimEngine*> ranks_;
};

TEST_F(Pair, R11_ParksAsOneAndGoesOutAsOne) {
  start();
  const FlightPtr victim = lose(1);
  const std::uint64_t before = written(0);
  std::vector<FlightPtr> all;
  for (int i = 0; i < 20; ++i)
    for (const FlightPtr& one : request(30s)) all.push_back(one);
  engines_.run_for(2s);
  EXPECT_EQ(a_->state(*ranks_[0]), "healthy");
  EXPECT_EQ(written(0), before) << "the healthy rank of a pair was served alone";
  const SessionInfo info = a_->session(*ranks_[0])->info();
  EXPECT_EQ(info.pair_parked, 20U);
  EXPECT_EQ(info.pair_waits_for, ranks_[1]->core().session_id());
  EXPECT_EQ(a_->session(*ranks_[1])->info().pair_parked, 0U);
  // Others aren't held up by what waits.
  const FlightPtr alone =
      a_->submit(*ranks_[0], Opcode::kWrite, {{a_->at(0), ranks_[0]->address(128), 64}});
  ASSERT_TRUE(engines_.finish({alone}, 1s));
  mend();
  all.push_back(victim);
  ASSERT_TRUE(engines_.finish(all, 5s));
  for (const FlightPtr& flight : all) EXPECT_TRUE(flight->ok()) << flight->text();
  EXPECT_EQ(a_->session(*ranks_[0])->info().pair_parked, 0U);
  EXPECT_EQ(a_->session(*ranks_[0])->health().in_flight(), 0U);
}

// First one rank is lost, then the other; they come back in either order.
TEST_F(Pair, R11_NothingIsForgottenWhenTheRanksAreLostInTurn) {
  start();
  for (const std::size_t first : {0U, 1U}) {
    const FlightPtr one = lose(1 - first);
    const auto waiting = request(60s);
    engines_.run_for(100ms);
    const FlightPtr other = lose(first);
    engines_.run_for(100ms);
    engines_.world().network().clear_fault(SimEngines::ip(0), SimEngines::ip(2 - first));
    engines_.run_for(8s);
    EXPECT_FALSE(waiting[0]->done() || waiting[1]->done());
    mend();
    std::vector<FlightPtr> all{one, other};
    all.insert(all.end(), waiting.begin(), waiting.end());
    ASSERT_TRUE(engines_.finish(all, 20s)) << first;
    for (const FlightPtr& flight : all) EXPECT_TRUE(flight->ok()) << flight->text();
    ASSERT_TRUE(engines_.run_until(
        [&] { return a_->state(*ranks_[0]) == "healthy" && a_->state(*ranks_[1]) == "healthy"; },
        60s));
  }
}

TEST_F(Pair, R11_FailFastEndsAllAtOnceNamingTheRankThatIsDown) {
  engines_.options().recovery.policy = FailedSessionPolicy::kFailFast;
  start();
  lose(1);
  const std::uint64_t before = written(0);
  const auto refused = request(30s);
  ASSERT_TRUE(engines_.finish(refused, 100ms));
  for (const FlightPtr& flight : refused) {
    EXPECT_EQ(flight->code(), Code::kSessionFailed);
    EXPECT_THAT(flight->text(), HasSubstr(ranks_[1]->core().session_id()));
  }
  EXPECT_EQ(written(0), before);
}

TEST_F(Pair, R11_WhatWaitsInVainEndsAsOneWithTheRankInItsReason) {
  start();
  const FlightPtr victim = lose(1);
  const auto waiting = request(3s);
  ASSERT_TRUE(engines_.finish(waiting, 4s));
  for (const FlightPtr& flight : waiting) {
    EXPECT_EQ(flight->code(), Code::kSessionFailed);
    EXPECT_THAT(flight->text(), HasSubstr(ranks_[1]->core().session_id()));
  }
  EXPECT_EQ(a_->state(*ranks_[0]), "healthy");
  // A caller that takes one back takes the request back.
  const auto given_up = request(30s);
  engines_.run_for(100ms);
  a_->cancel(given_up[1]);
  ASSERT_TRUE(engines_.finish(given_up, 100ms));
  EXPECT_EQ(given_up[0]->code(), Code::kCancelled);
}

// A rank that fails in the middle keeps its part; the others' have gone already.
TEST_F(Pair, AnOutageInTheMiddleCostsNothing) {
  start();
  std::vector<FlightPtr> all;
  for (int i = 0; i < 50; ++i) {
    for (const FlightPtr& one : request(30s)) all.push_back(one);
    if (i == 25) cut(1);
    engines_.run_for(10ms);
  }
  ASSERT_TRUE(engines_.run_until([&] { return a_->state(*ranks_[1]) == "failed"; }, 10s));
  engines_.run_for(1s);
  mend();
  ASSERT_TRUE(engines_.finish(all, 10s));
  for (const FlightPtr& flight : all) EXPECT_TRUE(flight->ok()) << flight->text();
}

}  // namespace
}  // namespace kvmend::engine
