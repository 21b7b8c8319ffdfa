#include "session/control_outbox.h"

#include <gtest/gtest.h>

namespace kvmend::session {
namespace {

std::vector<std::byte> body(std::size_t bytes = 4) {
  return std::vector<std::byte>(bytes);
}

std::vector<std::uint64_t> sent(ControlOutbox& outbox) {
  std::vector<std::uint64_t> numbers;
  outbox.send_new([&](const ControlOutbox::Message& m) { numbers.push_back(m.seq); });
  return numbers;
}

using Numbers = std::vector<std::uint64_t>;
using Told = std::vector<TransferId>;

TEST(ControlOutboxTest, KeepsUntilAcknowledgedAndSendsAgainOnANewEpoch) {
  ControlOutbox outbox;
  ASSERT_TRUE(outbox.add(body()).is_ok());
  ASSERT_TRUE(outbox.add(body(), TransferId(7)).is_ok());
  ASSERT_TRUE(outbox.add(body(), TransferId(8)).is_ok());
  EXPECT_EQ(outbox.begin_epoch(0), Told{});
  EXPECT_EQ(sent(outbox), (Numbers{1, 2, 3}));
  EXPECT_EQ(sent(outbox), Numbers{});
  EXPECT_EQ(outbox.acknowledge(1), Told{});
  // The connection broke; the peer says in its handshake that it has the second one, too.
  EXPECT_EQ(outbox.begin_epoch(2), Told{TransferId(7)});
  EXPECT_EQ(sent(outbox), Numbers{3});
  EXPECT_EQ(outbox.acknowledge(3), Told{TransferId(8)});
  EXPECT_TRUE(outbox.empty());
  EXPECT_EQ(outbox.bytes(), 0U);
  ASSERT_TRUE(outbox.add(body()).is_ok());
  EXPECT_EQ(sent(outbox), Numbers{4});
}

TEST(ControlOutboxTest, NumbersFollowThePeersCount) {
  ControlOutbox outbox;  // of a session that came again: the peer has seen 57 from the one before
  ASSERT_TRUE(outbox.add(body(), TransferId(7)).is_ok());
  EXPECT_EQ(outbox.begin_epoch(57), Told{});
  EXPECT_EQ(sent(outbox), Numbers{58});
  EXPECT_EQ(outbox.acknowledge(58), Told{TransferId(7)});
  ASSERT_TRUE(outbox.add(body()).is_ok());
  EXPECT_EQ(outbox.begin_epoch(0), Told{});  // the peer forgot us
  EXPECT_EQ(sent(outbox), Numbers{1});
}

TEST(ControlOutboxTest, ANewIncarnationStartsClean) {
  ControlOutbox outbox;
  ASSERT_TRUE(outbox.add(body()).is_ok());
  EXPECT_EQ(outbox.begin_epoch(3), Told{});
  outbox.reset();
  EXPECT_TRUE(outbox.empty());
  ASSERT_TRUE(outbox.add(body()).is_ok());
  EXPECT_EQ(outbox.begin_epoch(0), Told{});
  EXPECT_EQ(sent(outbox), Numbers{1});
}

// A stopped peer takes nothing for a minute, and whoever waits for its answer repeats his words.
TEST(ControlOutboxTest, ARepeatedMessageReplacesTheOneThatWaits) {
  ControlOutbox outbox;
  for (std::size_t i = 1; i <= 100; ++i) {
    ASSERT_TRUE(outbox.add(body(i), {}, "room 1").is_ok());
    ASSERT_TRUE(outbox.add(body(i), {}, "room 2").is_ok());
  }
  EXPECT_EQ(outbox.size(), 2U);
  EXPECT_EQ(outbox.bytes(), 200U);
  outbox.begin_epoch(0);
  EXPECT_EQ(sent(outbox), (Numbers{1, 2}));
  // What is on its way can't be taken back: one more, which then stands for all that follow.
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(outbox.add(body(), {}, "room 1").is_ok());
  EXPECT_EQ(outbox.size(), 3U);
  EXPECT_EQ(sent(outbox), Numbers{3});
  outbox.end_epoch();
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(outbox.add(body(), {}, "room 1").is_ok());
  EXPECT_EQ(outbox.size(), 3U);
  outbox.begin_epoch(2);  // the peer has the first two
  EXPECT_EQ(sent(outbox), Numbers{3});
  outbox.acknowledge(3);
  EXPECT_TRUE(outbox.empty());
  EXPECT_EQ(outbox.bytes(), 0U);
  ASSERT_TRUE(outbox.add(body(), {}, "room 1").is_ok());
  EXPECT_EQ(sent(outbox), Numbers{4});
}

// Case: Ctrl-C in a `notify` whose peer is away.
TEST(ControlOutboxTest, WhatHasNotLeftCanBeTakenBack) {
  ControlOutbox outbox;
  for (const std::uint64_t id : {7, 8, 9}) ASSERT_TRUE(outbox.add(body(), TransferId(id)).is_ok());
  outbox.withdraw(TransferId(7));
  outbox.begin_epoch(0);
  outbox.withdraw(TransferId(8));
  EXPECT_EQ(sent(outbox), Numbers{1});
  outbox.withdraw(TransferId(9));  // it has left
  EXPECT_EQ(outbox.acknowledge(1), Told{TransferId(9)});
  EXPECT_TRUE(outbox.empty());
  EXPECT_EQ(outbox.bytes(), 0U);
}

TEST(ControlOutboxTest, IsBounded) {
  ControlOutbox outbox;
  ASSERT_TRUE(outbox.add(body(config::kMaxControlBacklogBytes)).is_ok());
  EXPECT_EQ(outbox.add(body(1)).code(), Code::kResourceExhausted);
  EXPECT_EQ(outbox.bytes(), config::kMaxControlBacklogBytes);
}

}  // namespace
}  // namespace kvmend::session
