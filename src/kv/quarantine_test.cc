// Rooms over engines that can't check grants: one-sided hardware, whose writes end by themselves,
// and foreign engines, whose failed writes may go on (safety rule 3; cases I2, L2, L3).
#include <gmock/gmock.h>

#include "kv/fake_cluster.h"

namespace kvmend::kv {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

class OneSided : public Cluster {
 protected:
  OneSided() { begin(true); }
  /// New managers under these rules.
  void begin(bool failed_writes_rest, Duration unproven_after = 0s) {
    net.rules = {.grants_are_checked = false, .failed_writes_rest = failed_writes_rest};
    net.hold_writes = true;
    options.quarantine_unproven_after = unproven_after;
    for (Node* node : {prefill.get(), decode.get()}) {
      const KvRole role = node->manager->role();
      node->manager->teardown();
      net.loop.settle();
      node->manager = node->open(net, role, options);
    }
  }
  /// A room whose two writes are under way.
  struct Room {
    Room(KvManager& decode, KvManager& prefill, RoomId id)
        : receiver(decode, kPrefillAt, id), sender(prefill, id) {}
    KvReceiver receiver;
    KvSender sender;
  };
  std::unique_ptr<Room> running(RoomId id) {
    auto room = std::make_unique<Room>(*decode->manager, *prefill->manager, id);
    announce(room->receiver);
    send_all(room->sender);
    net.loop.settle();
    EXPECT_EQ(net.running_writes(), 2U);
    return room;
  }
  std::uint64_t held() { return decode->manager->stats().quarantined_pages; }
  void land_all() {
    while (net.land_late()) net.loop.settle();
  }
  void lose_acks() {
    net.lost = [](const std::string&, const wire::KvMessage& message) {
      return std::holds_alternative<wire::KvRoomAbortAck>(message);
    };
  }
};

TEST_F(OneSided, ARoomThatSucceedsHoldsNothing) {
  net.hold_writes = false;
  KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
  announce(receiver);
  KvSender sender(*prefill->manager, kRoom);
  send_all(sender);
  net.loop.settle();
  EXPECT_EQ(receiver.poll(), KvStatus::kSuccess) << why(receiver.failure());
  EXPECT_TRUE(receiver.pages_released());
  EXPECT_TRUE(sender.pages_released());
  EXPECT_EQ(held(), 0U);
  expect_landed();
}

// Case I2: the status comes at once, the pages with the proof.
TEST_F(OneSided, I2_PagesStayUntilTheWriterHasDrained) {
  const auto room = running(kRoom);
  const auto before = decode->pools.snapshot();
  room->receiver.abort("client went away");
  net.loop.settle();
  EXPECT_EQ(room->receiver.poll(), KvStatus::kFailed);
  EXPECT_FALSE(room->receiver.pages_released());
  EXPECT_EQ(held(), 5U);
  EXPECT_EQ(decode->manager->stats().quarantined_rooms, 1U);
  EXPECT_EQ(room->sender.poll(), KvStatus::kFailed) << "a status never waits for the hardware";
  EXPECT_FALSE(room->sender.pages_released());
  EXPECT_EQ(prefill->manager->stats().quarantined_pages, 5U);
  ASSERT_EQ(net.late_writes(), 2U);
  net.land_late();
  net.loop.settle();
  EXPECT_NE(decode->pools.snapshot(), before) << "nothing stops a one-sided write";
  EXPECT_FALSE(room->receiver.pages_released()) << "another write of the room is under way";
  land_all();
  EXPECT_TRUE(room->receiver.pages_released());
  EXPECT_TRUE(room->sender.pages_released());
  EXPECT_EQ(held(), 0U);
  EXPECT_EQ(decode->manager->stats().quarantine_released, 1U);
  EXPECT_EQ(decode->manager->stats().quarantine_unproven, 0U);
  expect_clean();
}

// Prefill gave the room up and said so: that it knows isn't that it has drained.
TEST_F(OneSided, AWriterThatFailedTheRoomItselfMustDrainToo) {
  const auto room = running(kRoom);
  room->sender.abort("out of memory");
  net.loop.settle();
  EXPECT_THAT(room->receiver.failure().detail(), HasSubstr("out of memory"));
  EXPECT_FALSE(room->receiver.pages_released());
  land_all();
  EXPECT_TRUE(room->receiver.pages_released());
  expect_clean();
}

TEST_F(OneSided, EveryRankThatCouldWriteMustHaveDrained) {
  decode.reset();
  net.rules = {};
  split_prefill();
  decode = std::make_unique<Node>(net, kDecodeAt, KvRole::kDecode, 2, options);
  net.rules = {.grants_are_checked = false};
  KvReceiver receiver(*decode->manager, {kPrefillAt, kOtherAt}, kRoom);
  announce(receiver);
  KvSender first(*prefill->manager, kRoom);
  KvSender second(*second_prefill->manager, kRoom);
  send_all(first);
  send_all(second);
  net.loop.settle();
  receiver.abort("enough");
  net.loop.settle();
  while (net.late_writes() > 1) {
    EXPECT_FALSE(receiver.pages_released());
    net.land_late();
    net.loop.settle();
  }
  EXPECT_FALSE(receiver.pages_released()) << "the second rank writes still";
  land_all();
  EXPECT_TRUE(receiver.pages_released());
}

// Case L2: silence never ends a hold, and neither does time.
TEST_F(OneSided, L2_SilenceAndTimeFreeNothing) {
  lose_acks();
  const auto room = running(kRoom);
  room->receiver.abort("client went away");
  net.loop.advance(24h);
  EXPECT_FALSE(room->receiver.pages_released());
  EXPECT_EQ(held(), 5U);
  net.kill(prefill->engine, true);  // proof of death
  net.loop.settle();
  EXPECT_TRUE(room->receiver.pages_released());
  EXPECT_EQ(held(), 0U);
}

TEST_F(OneSided, ARestartOfTheWriterIsAProof) {
  lose_acks();
  const auto room = running(kRoom);
  room->receiver.abort("client went away");
  net.loop.settle();
  EXPECT_EQ(held(), 5U);
  prefill->manager.reset();
  auto next = std::make_unique<Node>(net, kPrefillAt, KvRole::kPrefill, 3, options);
  net.loop.settle();
  EXPECT_TRUE(room->receiver.pages_released());
  prefill = std::move(next);
}

// Case L3: the sender vanishes; at the room's deadline the receiver destroys its endpoint.
TEST_F(OneSided, L3_AtTheDeadlineTheEndpointIsDestroyed) {
  net.can_fence = true;
  lose_acks();
  const auto room = running(kRoom);
  room->receiver.abort("client went away");
  net.loop.advance(59s);
  EXPECT_FALSE(room->receiver.pages_released()) << "not before the deadline";
  net.loop.advance(2s);
  EXPECT_TRUE(room->receiver.pages_released());
  EXPECT_EQ(net.late_writes(), 0U) << "they can't land any more";
  EXPECT_EQ(decode->manager->stats().quarantine_released, 1U);
}

TEST_F(OneSided, OverTheCapNewRoomsAreRefusedWithTheReason) {
  std::vector<std::unique_ptr<Room>> rooms;
  for (std::uint64_t id : {1U, 2U}) {  // 10 of 32 pages, at most 8
    rooms.push_back(running(RoomId(id)));
    rooms.back()->receiver.abort("enough");
    net.loop.settle();
  }
  EXPECT_EQ(held(), 10U);
  KvReceiver refused(*decode->manager, kPrefillAt, RoomId(3));
  net.loop.settle();
  EXPECT_EQ(refused.failure().code(), Code::kResourceExhausted);
  EXPECT_THAT(refused.failure().detail(), HasSubstr("quarantine: 10 of 32 pages"));
  EXPECT_EQ(decode->manager->stats().quarantine_refused, 1U);
  land_all();
  EXPECT_EQ(held(), 0U);
  KvReceiver taken(*decode->manager, kPrefillAt, RoomId(4));
  net.loop.settle();
  EXPECT_FALSE(is_terminal(taken.poll()));
}

TEST_F(OneSided, UnregisteredPoolsAreOutOfReach) {
  const auto room = running(kRoom);
  room->receiver.abort("client went away");
  net.loop.settle();
  EXPECT_FALSE(room->receiver.pages_released());
  decode->manager->teardown();
  EXPECT_TRUE(room->receiver.pages_released());
  EXPECT_FALSE(room->sender.pages_released());
  prefill->manager->teardown();
  EXPECT_TRUE(room->sender.pages_released());
}

class Foreign : public OneSided {
 protected:
  Foreign() { begin(false, 30s); }
};

// An engine whose -1 says nothing: only time is left, it is counted, and the sender waits as well.
TEST_F(Foreign, AFailedWriteIsNoProofForEitherSide) {
  const auto room = running(kRoom);
  room->receiver.abort("client went away");
  net.loop.settle();
  EXPECT_TRUE(room->receiver.abort_acknowledged());
  EXPECT_EQ(room->sender.poll(), KvStatus::kFailed);
  EXPECT_FALSE(room->receiver.pages_released());
  EXPECT_FALSE(room->sender.pages_released()) << "the engine may read them still";
  EXPECT_EQ(prefill->manager->stats().quarantined_pages, 5U);
  land_all();  // nobody learns of it
  net.loop.advance(89s);
  EXPECT_FALSE(room->receiver.pages_released());
  net.loop.advance(2s);
  EXPECT_TRUE(room->receiver.pages_released());
  EXPECT_TRUE(room->sender.pages_released());
  for (Node* node : {prefill.get(), decode.get()}) {
    EXPECT_EQ(node->manager->stats().quarantine_unproven, 1U);
    EXPECT_EQ(node->manager->stats().quarantined_pages, 0U);
  }
}

TEST_F(Foreign, WithoutAConfiguredTimePagesStay) {
  begin(false);
  const auto room = running(kRoom);
  room->receiver.abort("client went away");
  net.loop.advance(24h);
  EXPECT_FALSE(room->receiver.pages_released());
  EXPECT_FALSE(room->sender.pages_released());
}

TEST_F(Foreign, ANewRegistrationOfThePeerIsAProofForTheSender) {
  const auto room = running(kRoom);
  room->receiver.abort("client went away");
  net.loop.settle();
  EXPECT_FALSE(room->sender.pages_released());
  decode->manager->teardown();
  net.loop.advance(1s);
  decode->manager = decode->open(net, KvRole::kDecode, options);
  KvReceiver next(*decode->manager, kPrefillAt, RoomId(9));
  net.loop.settle();
  EXPECT_TRUE(room->sender.pages_released());
  EXPECT_EQ(prefill->manager->stats().quarantine_released, 1U);
}

// An abort before anything was written finds nothing under way, and says so.
TEST_F(Foreign, ARoomWithoutWritesIsFreeWithTheAnswer) {
  KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
  announce(receiver);
  KvSender sender(*prefill->manager, kRoom);
  net.loop.settle();
  receiver.abort("client went away");
  EXPECT_FALSE(receiver.pages_released());
  net.loop.settle();
  EXPECT_TRUE(receiver.pages_released());
  EXPECT_TRUE(sender.pages_released());
  EXPECT_EQ(decode->manager->stats().quarantine_unproven, 0U);
}

// A later manager can't know what an earlier one left behind.
TEST_F(Foreign, ANewManagersWordOnAnOldRoomIsNoProof) {
  const auto room = running(kRoom);
  prefill->manager->teardown();
  prefill->manager = prefill->open(net, KvRole::kPrefill, options);
  net.loop.settle();
  EXPECT_EQ(room->receiver.failure().code(), Code::kShuttingDown);
  EXPECT_FALSE(room->receiver.pages_released());
  net.loop.advance(80s);
  EXPECT_FALSE(room->receiver.pages_released());
}

}  // namespace
}  // namespace kvmend::kv
