#include "health/ejection.h"

#include <gtest/gtest.h>

namespace kvmend::health {
namespace {

class EjectionTest : public testing::Test {
 protected:
  HealthOptions options;
  EjectionBudget budget{options};
  Time now = Time{} + 1h;
};

TEST_F(EjectionTest, SuspectsItselfWhenMostPeersVanishAtOnce) {
  budget.set_active(8, now);
  for (std::uint64_t i = 1; i <= 4; ++i) budget.on_blacklisted(SessionKey{i}, now);
  EXPECT_FALSE(budget.view().suspected);  // half is not most
  budget.on_blacklisted(SessionKey{5}, now);
  EXPECT_TRUE(budget.view().suspected);
  EXPECT_EQ(budget.view().stretch, options.self_stretch_factor);
  EXPECT_FALSE(budget.view().may_fail_fast());
  budget.on_lifted(SessionKey{5}, now);
  EXPECT_FALSE(budget.view().suspected);
  EXPECT_EQ(budget.suspicions(), 1U);
}

TEST_F(EjectionTest, TwoOfTwoPeersAreTooFewToTell) {
  budget.set_active(2, now);
  budget.on_blacklisted(SessionKey{1}, now);
  budget.on_blacklisted(SessionKey{2}, now);
  EXPECT_FALSE(budget.view().suspected);
  EXPECT_TRUE(budget.view().may_fail_fast());
}

TEST_F(EjectionTest, LossesSpreadOverTimeAreThePeersOwn) {
  budget.set_active(10, now);
  for (std::uint64_t i = 1; i <= 9; ++i) {
    budget.on_blacklisted(SessionKey{i}, now);
    now += options.self_suspect_window / 2;
  }
  EXPECT_FALSE(budget.view().suspected);
  EXPECT_TRUE(budget.view().over_budget);  // yet no request is failed faster than its deadline
}

TEST_F(EjectionTest, TheSuspicionEndsWhenNothingElseIsLost) {
  budget.set_active(4, now);
  for (std::uint64_t i = 1; i <= 4; ++i) budget.on_blacklisted(SessionKey{i}, now);
  EXPECT_EQ(budget.next_at(), now + options.self_suspect_max);
  now = budget.next_at();
  budget.on_timer(now);
  EXPECT_FALSE(budget.view().suspected);
  EXPECT_EQ(budget.next_at(), kForever);
}

TEST_F(EjectionTest, LostAndLiftedManyTimesInOneInstantCountsRight) {
  budget.set_active(4, now);
  for (int round = 0; round < 100; ++round) {
    budget.on_blacklisted(SessionKey{1}, now);
    budget.on_blacklisted(SessionKey{1}, now);
    budget.on_lifted(SessionKey{1}, now);
    budget.on_lifted(SessionKey{1}, now);
  }
  now += 1h;
  for (std::uint64_t i = 1; i <= 3; ++i) budget.on_blacklisted(SessionKey{i}, now);
  EXPECT_TRUE(budget.view().suspected);
  EXPECT_EQ(budget.blacklisted(), 3U);
}

}  // namespace
}  // namespace kvmend::health
