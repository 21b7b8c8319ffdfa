// Rooms whose decode session is blacklisted: how many may wait, and for whom.
#include <gmock/gmock.h>

#include "base/config.h"
#include "kv/fake_cluster.h"
#include "kv/park_limits.h"

namespace kvmend::kv {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

TEST(ParkLimits, AQuarterForOneAndHalfForAll) {
  ParkLimits limits(100, KvOptions{});
  const auto failed = [](const std::string& session) { return session != "healthy"; };
  EXPECT_TRUE(limits.may_park("a", 25, failed).is_ok());
  EXPECT_FALSE(limits.may_park("a", 26, failed).is_ok());
  limits.hold("a", 20);
  limits.hold("healthy", 70);  // moves: doesn't count
  EXPECT_TRUE(limits.may_park("a", 5, failed).is_ok());
  EXPECT_THAT(limits.may_park("a", 6, failed).detail(), HasSubstr("20 of 100 pages wait for a"));
  limits.hold("b", 25);
  EXPECT_TRUE(limits.may_park("c", 5, failed).is_ok());
  EXPECT_THAT(limits.may_park("c", 6, failed).detail(),
              HasSubstr("45 of 100 pages wait for blacklisted sessions"));
  limits.release("b", 25);
  EXPECT_TRUE(limits.may_park("c", 6, failed).is_ok());
  limits.release("a", 99);
  EXPECT_EQ(limits.held("a"), 0U);
}

class Park : public Cluster {
 protected:
  static constexpr std::uint32_t kShare = Pools::kPages / 4;

  std::unique_ptr<KvReceiver> receive(RoomId room, std::uint32_t page) {
    auto receiver = std::make_unique<KvReceiver>(*decode->manager, kPrefillAt, room);
    EXPECT_TRUE(receiver->send_metadata(std::vector<std::uint32_t>{page}).is_ok());
    net.loop.settle();
    return receiver;
  }
  std::unique_ptr<KvSender> send(RoomId room, std::uint32_t page) {
    auto sender = std::make_unique<KvSender>(*prefill->manager, room);
    EXPECT_TRUE(sender->init(1).is_ok());
    EXPECT_TRUE(sender->send(std::vector<std::uint32_t>{page}).is_ok());
    net.loop.settle();
    return sender;
  }
};

TEST_F(Park, BeyondItsShareARoomFailsFastWithTheReason) {
  std::vector<std::unique_ptr<KvReceiver>> receivers;
  std::vector<std::unique_ptr<KvSender>> senders;
  for (std::uint32_t i = 0; i <= kShare; ++i) receivers.push_back(receive(RoomId(i + 1), i));
  net.hold_writes = true;
  prefill->engine.blacklisted[kDecodeAt] = {
      {Code::kSessionFailed, Origin::kLink, "no sign of life"}, false};
  for (std::uint32_t i = 0; i <= kShare; ++i) senders.push_back(send(RoomId(i + 1), i));
  for (std::uint32_t i = 0; i < kShare; ++i)
    EXPECT_EQ(senders[i]->poll(), KvStatus::kWaitingForInput) << i << ": no byte moves";
  EXPECT_EQ(senders[kShare]->failure().code(), Code::kSessionFailed);
  EXPECT_THAT(senders[kShare]->failure().detail(), HasSubstr("8 of 32 pages wait for"));
  EXPECT_THAT(senders[kShare]->failure().detail(), HasSubstr("no sign of life"));

  prefill->engine.blacklisted.clear();  // it has recovered: all that waited goes on
  while (net.land_next()) net.loop.settle();
  for (std::uint32_t i = 0; i < kShare; ++i)
    EXPECT_EQ(receivers[i]->poll(), KvStatus::kSuccess) << i;
  EXPECT_EQ(receivers[kShare]->poll(), KvStatus::kFailed);
  expect_clean();
}

// A healthy session's rooms aren't limited, however many pages they hold.
TEST_F(Park, OnlyBlacklistedSessionsCount) {
  net.hold_writes = true;
  std::vector<std::unique_ptr<KvReceiver>> receivers;
  std::vector<std::unique_ptr<KvSender>> senders;
  for (std::uint32_t i = 0; i < Pools::kPages; ++i) {
    receivers.push_back(receive(RoomId(i + 1), i));
    senders.push_back(send(RoomId(i + 1), i));
  }
  while (net.land_next()) net.loop.settle();
  for (const auto& receiver : receivers) EXPECT_EQ(receiver->poll(), KvStatus::kSuccess);
  expect_clean();
}

// Early abort: a room whose session refuses fails when it is taken from the queue, on either side.
TEST_F(Park, UnderTheFailFastPolicyRoomsEndAtOnce) {
  auto announced = receive(RoomId(1), 1);
  prefill->engine.blacklisted[kDecodeAt] = {
      {Code::kSessionFailed, Origin::kLink, "no sign of life"}, true};
  KvSender sender(*prefill->manager, RoomId(1));
  net.loop.settle();
  EXPECT_EQ(sender.failure().code(), Code::kSessionFailed);
  EXPECT_THAT(sender.failure().detail(), HasSubstr("no sign of life"));
  EXPECT_EQ(announced->poll(), KvStatus::kFailed);
  decode->engine.blacklisted[kPrefillAt] = {{Code::kSessionFailed, Origin::kLink, "nobody listens"},
                                            true};
  KvReceiver receiver(*decode->manager, kPrefillAt, RoomId(2));
  net.loop.settle();
  EXPECT_THAT(receiver.failure().detail(), HasSubstr("nobody listens"));
  net.loop.advance(61s);
  expect_clean();
}

// Case R11 at decode: while the session to one prefill rank is down, none of them is told of a new
// room, so that none begins; that rank's own message waits in its session, which is the demand that
// brings the probes.
class PairAtDecode : public Park {
 protected:
  void SetUp() override {
    split_prefill();
    net.lost = [this](const std::string& to, const wire::KvMessage& message) {
      told[to] += std::holds_alternative<wire::KvRoomMetadata>(message) ? 1 : 0;
      return deaf && to == kOtherAt;
    };
    run(RoomId(1));  // both ranks know decode's layout from now on
    told.clear();
  }
  void run(RoomId room) {
    KvReceiver receiver(*decode->manager, {kPrefillAt, kOtherAt}, room);
    announce(receiver);
    KvSender first(*prefill->manager, room);
    KvSender second(*second_prefill->manager, room);
    send_all(first);
    send_all(second);
    net.loop.settle();
    ASSERT_EQ(receiver.poll(), KvStatus::kSuccess) << why(receiver.failure());
  }
  void lose_second(bool refuses, Time park_until = kForever) {
    decode->engine.blacklisted[kOtherAt] = {
        .reason = {Code::kSessionFailed, Origin::kLink, "10.0.0.3:7001: no sign of life"},
        .refuses = refuses,
        .park_until = park_until};
  }
  std::map<std::string, int> told;
  bool deaf = false;  ///< nothing reaches the second rank
};

TEST_F(PairAtDecode, R11_ARoomOfAPairWithALostRankWaitsAsOne) {
  lose_second(false);
  KvReceiver receiver(*decode->manager, {kPrefillAt, kOtherAt}, kRoom);
  announce(receiver);
  KvSender first(*prefill->manager, kRoom);
  KvSender second(*second_prefill->manager, kRoom);
  send_all(first);
  send_all(second);
  net.loop.settle();
  EXPECT_EQ(told[kPrefillAt], 0);
  EXPECT_GT(told[kOtherAt], 0);
  EXPECT_EQ(first.poll(), KvStatus::kBootstrapping);
  decode->engine.blacklisted[kOtherAt].trial = true;
  decode->engine.observer->on_session_usable(kOtherAt);
  net.loop.settle();
  EXPECT_GT(told[kPrefillAt], 0);
  EXPECT_EQ(receiver.poll(), KvStatus::kSuccess) << why(receiver.failure());
  EXPECT_EQ(first.poll(), KvStatus::kSuccess);
  expect_clean();
}

TEST_F(PairAtDecode, R11_ItWaitsNoLongerThanParkMaxAndNamesTheRank) {
  lose_second(false, net.loop.now() + 2s);
  KvReceiver receiver(*decode->manager, {kPrefillAt, kOtherAt}, kRoom);
  announce(receiver);
  net.loop.advance(1'900ms);
  EXPECT_EQ(receiver.poll(), KvStatus::kWaitingForInput);
  net.loop.advance(200ms);
  EXPECT_EQ(receiver.failure().code(), Code::kSessionFailed);
  EXPECT_THAT(receiver.failure().detail(), HasSubstr(kOtherAt));
  EXPECT_EQ(told[kPrefillAt], 0);
}

// The process is gone: what waits already need not wait longer than what begins from then on.
TEST_F(PairAtDecode, NewsThatTheRankIsGoneShortensTheWait) {
  KvReceiver running(*decode->manager, {kPrefillAt, kOtherAt}, RoomId(2));
  announce(running);
  net.loop.settle();
  lose_second(false);
  KvReceiver receiver(*decode->manager, {kPrefillAt, kOtherAt}, kRoom);
  announce(receiver);
  net.loop.advance(1s);
  lose_second(false, net.loop.now() + 500ms);
  decode->engine.observer->on_session_refused(kOtherAt);
  net.loop.advance(400ms);
  EXPECT_EQ(receiver.poll(), KvStatus::kWaitingForInput);
  net.loop.advance(200ms);
  EXPECT_EQ(receiver.failure().code(), Code::kSessionFailed);
  EXPECT_NE(running.poll(), KvStatus::kFailed) << "its pages may be on their way";
}

TEST_F(PairAtDecode, R11_AtItsDeadlineTheReasonNamesTheRank) {
  lose_second(false);
  KvReceiver receiver(*decode->manager, {kPrefillAt, kOtherAt}, kRoom);
  deaf = true;
  announce(receiver);
  net.loop.advance(options.room_deadline + 1s);
  EXPECT_EQ(receiver.failure().code(), Code::kDeadlineExceeded);
  EXPECT_THAT(receiver.failure().detail(), HasSubstr("10.0.0.3:7001: no sign of life"));
}

TEST_F(PairAtDecode, R11_UnderTheFailFastPolicyItEndsAtOnceWhenTheRankIsLostMeanwhile) {
  KvReceiver receiver(*decode->manager, {kPrefillAt, kOtherAt}, kRoom);
  net.loop.settle();
  lose_second(true);
  announce(receiver);
  net.loop.settle();
  EXPECT_EQ(receiver.failure().code(), Code::kSessionFailed);
  EXPECT_EQ(told[kPrefillAt] + told[kOtherAt], 0);
}

}  // namespace
}  // namespace kvmend::kv
