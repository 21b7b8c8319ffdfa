// A flood of initiators that nobody has heard of before must not cost the known ones their place.
#include "session/inbound_peers.h"

#include <gtest/gtest.h>

#include "base/config.h"

namespace kvmend::session {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kLimit = 100;

class InboundPeersTest : public testing::Test {
 protected:
  // Opens an epoch and closes it again.
  InboundPeer* visit(std::uint64_t incarnation, bool proven, std::uint64_t epoch = 1) {
    InboundPeer* peer = open(incarnation);
    if (peer == nullptr) return nullptr;
    peer->proven = peer->proven || proven;
    peer->max_epoch = epoch;
    peer->control = nullptr;
    peers_.lanes_changed(*peer, now_);
    return peer;
  }
  InboundPeer* open(std::uint64_t incarnation) {
    InboundPeer* peer = peers_.find_or_add(Incarnation(incarnation), now_);
    if (peer == nullptr) return nullptr;
    peer->control = reinterpret_cast<transport::Lane*>(&now_);  // never followed
    peers_.lanes_changed(*peer, now_);
    return peer;
  }
  bool knows(std::uint64_t incarnation) { return peers_.find(Incarnation(incarnation)) != nullptr; }

  Time now_{1h};
  InboundPeers peers_{kLimit};
};

TEST_F(InboundPeersTest, AFloodOfStrangersDisplacesItselfOnly) {
  for (std::uint64_t i = 1; i <= 20; ++i) open(i);                        // connected now
  for (std::uint64_t i = 21; i <= 40; ++i) visit(i, /*proven=*/true, 7);  // gone for the moment
  for (std::uint64_t i = 1'000; i < 100'000; ++i) ASSERT_NE(visit(i, false), nullptr) << i;
  EXPECT_EQ(peers_.size(), kLimit);
  for (std::uint64_t i = 1; i <= 40; ++i) EXPECT_TRUE(knows(i)) << i;
  EXPECT_EQ(peers_.find(Incarnation(30))->max_epoch, 7U);  // its fence stands
  EXPECT_FALSE(knows(1'000));
  EXPECT_TRUE(knows(99'999));
  ASSERT_NE(visit(500, true), nullptr);  // and a new one still gets in
}

TEST_F(InboundPeersTest, ProvenPeersGoOnlyWhenTheyHaveBeenAwayForAWhile) {
  for (std::uint64_t i = 1; i <= kLimit; ++i) {
    visit(i, true);
    now_ += 1ms;
  }
  EXPECT_EQ(visit(1'000, true), nullptr);  // everyone was here a moment ago
  now_ += config::kForgetProvenAfter;
  open(1);  // back: not to be forgotten now
  EXPECT_NE(visit(1'000, true), nullptr);
  EXPECT_TRUE(knows(1));
  EXPECT_FALSE(knows(2));
  EXPECT_TRUE(knows(3));
}

TEST_F(InboundPeersTest, AFullTableOfOpenPeersRefusesNewOnesAndKnowsItsOwn) {
  for (std::uint64_t i = 1; i <= kLimit; ++i) open(i);
  now_ += 10h;
  EXPECT_EQ(open(1'000), nullptr);
  EXPECT_NE(open(50), nullptr);
  visit(50, false);
  EXPECT_NE(open(1'000), nullptr);
  EXPECT_FALSE(knows(50));
}

TEST_F(InboundPeersTest, ForgetsByTimeOfClosing) {
  visit(1, false);
  visit(2, true);
  open(3);
  now_ += 5min;
  visit(4, false);
  peers_.forget_older(now_ - 1min);
  EXPECT_FALSE(knows(1));
  EXPECT_FALSE(knows(2));
  EXPECT_TRUE(knows(3));
  EXPECT_TRUE(knows(4));
}

TEST_F(InboundPeersTest, AStrangerThatProvesItselfChangesItsShelf) {
  visit(1, false);
  for (std::uint64_t i = 2; i <= kLimit; ++i) visit(i, false);
  visit(1, true);
  for (std::uint64_t i = 1'000; i < 1'000 + 2 * kLimit; ++i) visit(i, false);
  EXPECT_TRUE(knows(1));
  EXPECT_FALSE(knows(2));
}

}  // namespace
}  // namespace kvmend::session
