// The oracle itself: what it must notice, and what it must let pass.
#include "sim/pool.h"

#include <gtest/gtest.h>

#include <cstring>

#include "sim/content.h"

namespace kvmend::sim {
namespace {

using namespace std::chrono_literals;

class PoolTest : public testing::Test {
 protected:
  PermitId allow(Use use, std::size_t begin, std::size_t length, Time expires = kForever) {
    return pool_.allow(
        {.use = use, .what = "room", .expires = expires, .segments = {{begin, length, kSeed}}});
  }
  // As the code under test writes: behind the oracle's back.
  void land(std::size_t begin, std::size_t length, std::uint64_t seed) {
    fill({pool_.base() + begin, length}, seed);
    pool_.on_activity();
  }

  static constexpr std::uint64_t kSeed = 7;
  Time now_{};
  Verdict verdict_{[this] { return now_; }};
  Pool pool_{"pool", 2'000, [this] { return now_; }, verdict_};
};

TEST_F(PoolTest, TheRightBytesUnderAGrantPass) {
  allow(Use::kLand, 100, 50);
  land(100, 50, kSeed);
  EXPECT_TRUE(pool_.dirty());
  pool_.look();
  EXPECT_FALSE(verdict_.broken());
  EXPECT_TRUE(pool_.matches({100, 50, kSeed}));
}

TEST_F(PoolTest, AByteOutsideOfEveryGrantIsNoticed) {
  allow(Use::kLand, 100, 50);
  land(150, 1, kSeed);
  pool_.look();
  EXPECT_EQ(verdict_.first().rule, 1);
}

TEST_F(PoolTest, ForeignBytesUnderAGrantAreNoticed) {
  allow(Use::kLand, 100, 50);
  land(100, 50, kSeed + 1);
  pool_.look();
  EXPECT_EQ(verdict_.first().rule, 1);
}

TEST_F(PoolTest, ZerosOfASenderThatGaveUpPass) {
  allow(Use::kLand, 100, 50);
  land(100, 50, kSeed);
  pool_.look();
  std::memset(pool_.base() + 120, 0, 30);
  pool_.look();
  EXPECT_FALSE(verdict_.broken());
  EXPECT_FALSE(pool_.matches({100, 50, kSeed}));
}

TEST_F(PoolTest, NothingLandsAfterTheEnd) {
  const PermitId ended = allow(Use::kLand, 0, 10);
  land(0, 5, kSeed);
  pool_.end(ended);  // what landed before counts as allowed
  EXPECT_FALSE(verdict_.broken());
  land(0, 10, kSeed);
  pool_.look();
  EXPECT_EQ(verdict_.first().rule, 1);
}

TEST_F(PoolTest, NothingLandsAfterTheExpiry) {
  allow(Use::kLand, 10, 10, now_ + 1s);
  now_ += 1s;
  land(10, 10, kSeed);
  pool_.look();
  EXPECT_EQ(verdict_.first().rule, 1);
}

TEST_F(PoolTest, ReceivingIntoAPlaceIsNoticedEvenWhereNothingChanges) {
  pool_.write(0, 10, kSeed);
  pool_.on_received_into(pool_.base(), 10);
  EXPECT_EQ(verdict_.first().rule, 1);
}

TEST_F(PoolTest, SendingFromAPageThatIsTheApplicationsAgainIsNoticed) {
  const PermitId sending = allow(Use::kSend, 0, 10);
  pool_.on_sent_from(pool_.base() + 2, 8);
  EXPECT_FALSE(verdict_.broken());
  pool_.end(sending);
  pool_.on_sent_from(pool_.base() + 2, 8);
  EXPECT_EQ(verdict_.first().rule, 7);
}

TEST_F(PoolTest, OtherMemoryIsNobodysBusiness) {
  std::byte elsewhere[4] = {};
  pool_.on_received_into(elsewhere, 4);
  pool_.on_sent_from(elsewhere, 4);
  EXPECT_FALSE(verdict_.broken());
}

}  // namespace
}  // namespace kvmend::sim
