#include "health/pair_health.h"

#include <gtest/gtest.h>

namespace kvmend::health {
namespace {

class PairTest : public testing::Test {
 protected:
  void SetUp() override {
    for (SessionHealth* session : pair) session->on_connected(Incarnation{7}, 1, now);
  }
  void blacklist(SessionHealth& session) {
    session.on_failure(
        {Status(Code::kConnectionRefused, Origin::kPeer, "gone"), session.attempt(), now}, now);
  }

  HealthOptions options;
  SelfView self;
  Time now = Time{} + 1h;
  SessionHealth a{options, self, 1, now};
  SessionHealth b{options, self, 2, now};
  std::vector<SessionHealth*> pair{&a, &b};
};

TEST_F(PairTest, R11_OneBlacklistedRankParksThePairAsOne) {
  EXPECT_EQ(admit_pair(pair).tickets.size(), 2U);
  blacklist(b);
  EXPECT_EQ(worst_state(pair), State::kFailed);
  const std::size_t before = a.in_flight();
  EXPECT_EQ(admit_pair(pair).verdict, Admission::Verdict::kPark);
  EXPECT_EQ(a.in_flight(), before);  // nothing half dispatched
}

TEST_F(PairTest, R11_WithFailFastThePairFailsAsOneWithTheRanksReason) {
  options.policy = ParkPolicy::kFailFast;
  blacklist(b);
  const PairAdmission admission = admit_pair(pair);
  EXPECT_EQ(admission.verdict, Admission::Verdict::kRefuse);
  EXPECT_EQ(admission.decided_by, 1U);
  EXPECT_EQ(pair[admission.decided_by]->refusal().code(), Code::kSessionFailed);
  EXPECT_EQ(a.in_flight(), 0U);
}

TEST_F(PairTest, R11_TrialPlacesOfOneRankAreGivenBackWhenAnotherParks) {
  blacklist(a);
  blacklist(b);
  now += 100ms;
  a.on_probe_started(now);
  a.on_probe_passed(now, Incarnation{7}, now + 1ms);
  ASSERT_EQ(a.state(), State::kProbing);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(admit_pair(pair).verdict, Admission::Verdict::kPark);
  EXPECT_EQ(a.admit().verdict, Admission::Verdict::kDispatch);
}

}  // namespace
}  // namespace kvmend::health
