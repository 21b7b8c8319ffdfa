// Aborts, in both directions, at every moment.
#include <gmock/gmock.h>
#include <spdlog/sinks/ostream_sink.h>

#include <random>
#include <sstream>

#include "base/log.h"

#include "kv/fake_cluster.h"

namespace kvmend::kv {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

class Abort : public Cluster {};

// Case I7: decode gets an explicit failure with the reason, in bounded time.
TEST_F(Abort, I7_PrefillAbortsAfterOneOfItsPages) {
  KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
  announce(receiver);
  KvSender sender(*prefill->manager, kRoom);
  ASSERT_TRUE(sender.init(5, kSourceRow).is_ok());
  ASSERT_TRUE(sender.send(std::span(source).first(1)).is_ok());
  net.loop.settle();
  EXPECT_EQ(receiver.poll(), KvStatus::kTransferring);
  sender.abort("the model ran out of memory");
  net.loop.settle();
  EXPECT_EQ(sender.failure().code(), Code::kAborted);
  EXPECT_EQ(receiver.failure().code(), Code::kAborted);
  EXPECT_EQ(receiver.failure().origin(), Origin::kPeer);
  EXPECT_THAT(receiver.failure().detail(), HasSubstr("the model ran out of memory"));
  EXPECT_THAT(receiver.failure().detail(), HasSubstr(kPrefillAt));
  expect_clean();
}

// Case I2, seen from here: pages are free at once, on proof, and the late write can't land.
TEST_F(Abort, I2_DecodeAbortsWhileAWriteIsInFlight) {
  net.hold_writes = true;
  KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
  announce(receiver);
  KvSender sender(*prefill->manager, kRoom);
  send_all(sender);
  net.loop.settle();
  ASSERT_EQ(net.running_writes(), 2U);
  const auto before = decode->pools.snapshot();
  receiver.abort("client went away");
  net.loop.step();
  EXPECT_EQ(receiver.poll(), KvStatus::kFailed);
  EXPECT_EQ(decode->engine.grants.size(), 0U);
  EXPECT_EQ(net.running_writes(), 2U);  // prefill doesn't know yet
  ASSERT_TRUE(net.land_next());
  EXPECT_EQ(decode->pools.snapshot(), before);
  EXPECT_FALSE(receiver.abort_acknowledged());
  net.loop.settle();
  // The refused write came first, but the reason is decode's own.
  EXPECT_EQ(sender.failure().code(), Code::kAborted) << why(sender.failure());
  EXPECT_THAT(sender.failure().detail(), HasSubstr("client went away"));
  EXPECT_TRUE(receiver.abort_acknowledged());
  expect_clean();
}

TEST_F(Abort, DecodesWordIsLostAndTheRefusedWriteMustDo) {
  net.hold_writes = true;
  KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
  announce(receiver);
  KvSender sender(*prefill->manager, kRoom);
  send_all(sender);
  net.loop.settle();
  net.lost = [](const std::string& to, const wire::KvMessage& message) {
    return to == kPrefillAt && std::holds_alternative<wire::KvRoomAbort>(message);
  };
  receiver.abort("client went away");
  net.loop.settle();
  while (net.land_next()) net.loop.settle();
  EXPECT_FALSE(is_terminal(sender.poll()));
  net.loop.advance(1s);
  EXPECT_EQ(sender.failure().code(), Code::kPermissionDenied) << why(sender.failure());
  expect_clean();
}

TEST_F(Abort, OfAnAnnouncedRoomReachesTheSenderThatComesLater) {
  KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
  announce(receiver);
  net.loop.settle();
  receiver.abort("client went away");
  net.loop.settle();
  EXPECT_TRUE(receiver.abort_acknowledged());
  KvSender sender(*prefill->manager, kRoom);
  net.loop.settle();
  EXPECT_THAT(sender.failure().detail(), HasSubstr("client went away"));
  expect_clean();
  // The number is free for another attempt.
  KvSender again(*prefill->manager, kRoom);
  KvReceiver receiver2(*decode->manager, kPrefillAt, kRoom);
  announce(receiver2);
  send_all(again);
  net.loop.settle();
  EXPECT_EQ(receiver2.poll(), KvStatus::kSuccess);
}

// Decode's abort was lost for good, and it asks again under the same number.
TEST_F(Abort, ALaterAttemptOfTheSameEngineReplacesTheEarlierOne) {
  auto receiver = std::make_unique<KvReceiver>(*decode->manager, kPrefillAt, kRoom);
  announce(*receiver);
  KvSender sender(*prefill->manager, kRoom);
  net.loop.settle();
  net.lost = [](const std::string&, const wire::KvMessage& message) {
    return std::holds_alternative<wire::KvRoomAbort>(message);
  };
  receiver.reset();
  net.loop.settle();
  EXPECT_FALSE(is_terminal(sender.poll()));
  KvReceiver again(*decode->manager, kPrefillAt, kRoom);
  announce(again);
  net.loop.settle();
  EXPECT_THAT(sender.failure().detail(), HasSubstr("another attempt of the room was started"));
  KvSender sender2(*prefill->manager, kRoom);
  send_all(sender2);
  net.loop.settle();
  EXPECT_EQ(again.poll(), KvStatus::kSuccess) << why(again.failure());
  expect_landed();
  expect_clean();
}

TEST_F(Abort, TheFirstCauseIsKept) {
  KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
  announce(receiver);
  KvSender sender(*prefill->manager, kRoom);
  net.loop.settle();
  sender.abort("first");
  sender.abort("second");
  receiver.abort("third");
  net.loop.settle();
  EXPECT_THAT(sender.failure().detail(), HasSubstr("first"));
  const std::string kept = why(receiver.failure());
  receiver.abort("fourth");
  sender.clear();
  net.loop.settle();
  EXPECT_EQ(why(receiver.failure()), kept);
  expect_clean();
}

// Case L6: completion and abort in both orders.
TEST_F(Abort, L6_AfterTheCompletionChangesNothing) {
  KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
  announce(receiver);
  KvSender sender(*prefill->manager, kRoom);
  send_all(sender);
  net.loop.settle();
  receiver.abort("too late");
  sender.abort("too late");
  net.inject(decode->engine, prefill->engine,
             wire::KvRoomAbort{.room = kRoom, .attempt = 1, .reason = "too late"});
  net.inject(prefill->engine, decode->engine,
             wire::KvRoomAbort{.room = kRoom, .attempt = 1, .reason = "too late"});
  net.loop.settle();
  EXPECT_EQ(receiver.poll(), KvStatus::kSuccess);
  EXPECT_EQ(sender.poll(), KvStatus::kSuccess);
  expect_clean();
}

TEST_F(Abort, L6_CrossesTheCompletion) {
  for (const bool decode_aborts : {true, false}) {
    net.hold_writes = true;
    KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
    announce(receiver);
    KvSender sender(*prefill->manager, kRoom);
    send_all(sender);
    net.loop.settle();
    while (net.land_next()) {
    }
    // Everything has landed; KvRoomDone is on its way, and meets an abort.
    if (decode_aborts) {
      receiver.abort("crossing");
    } else {
      sender.abort("crossing");
    }
    net.loop.settle();
    net.loop.advance(1s);
    EXPECT_TRUE(is_terminal(sender.poll()));
    EXPECT_TRUE(is_terminal(receiver.poll()));
    expect_clean();
  }
}

// Case L6: nor does nonsense of a peer fill the log.
TEST_F(Abort, L6_LogsOfNonsenseAreRateLimited) {
  std::ostringstream log;
  const auto before = spdlog::default_logger();
  spdlog::set_default_logger(std::make_shared<spdlog::logger>(
      "test", std::make_shared<spdlog::sinks::ostream_sink_mt>(log)));
  const auto flood = [&] {
    for (int i = 0; i < 1'000; ++i)
      net.deliver(decode->engine, kPrefillAt, prefill->engine.incarnation, "\xFF garbage");
    net.loop.settle();
  };
  flood();
  net.loop.advance(2s);
  flood();
  spdlog::set_default_logger(before);
  EXPECT_EQ(prefill->manager->stats().malformed_messages, 2'000U) << "all are counted";
  const std::string text = log.str();
  EXPECT_EQ(std::ranges::count(text, '\n'), 2) << text;
  EXPECT_THAT(text, HasSubstr("999"));
}

TEST_F(Abort, FanOutGetsAnAcknowledgementFromEveryWriter) {
  split_prefill();
  KvReceiver receiver(*decode->manager, {kPrefillAt, kOtherAt}, kRoom);
  announce(receiver);
  KvSender first(*prefill->manager, kRoom);
  KvSender second(*second_prefill->manager, kRoom);
  net.loop.settle();
  int acks = 0;
  net.lost = [&](const std::string& to, const wire::KvMessage& message) {
    if (to != kDecodeAt || !std::holds_alternative<wire::KvRoomAbortAck>(message)) return false;
    return ++acks == 2;
  };
  receiver.abort("client went away");
  net.loop.settle();
  EXPECT_EQ(acks, 2);
  EXPECT_FALSE(receiver.abort_acknowledged());  // one of the two is missing
  EXPECT_EQ(first.poll(), KvStatus::kFailed);
  EXPECT_EQ(second.poll(), KvStatus::kFailed);
}

TEST_F(Abort, OneWritersFailureEndsTheRoomForTheOthers) {
  split_prefill();
  KvReceiver receiver(*decode->manager, {kPrefillAt, kOtherAt}, kRoom);
  announce(receiver);
  KvSender first(*prefill->manager, kRoom);
  KvSender second(*second_prefill->manager, kRoom);
  net.loop.settle();
  first.abort("rank 0 died");
  net.loop.settle();
  EXPECT_THAT(receiver.failure().detail(), HasSubstr("rank 0 died"));
  EXPECT_THAT(second.failure().detail(), HasSubstr("rank 0 died"));
  expect_clean();
}

TEST_F(Abort, DestroyingAHandleEndsItsRoom) {
  {
    KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
    announce(receiver);
    net.loop.settle();
  }
  KvSender sender(*prefill->manager, kRoom);
  net.loop.settle();
  EXPECT_EQ(sender.failure().code(), Code::kCancelled);
  expect_clean();
}

// Case L5: a cancel after every single step of the protocol, from either side, leaves nothing.
TEST_F(Abort, L5_AtEveryStepLeavesNothing) {
  for (const bool from_decode : {true, false}) {
    bool finished = false;
    for (int steps = 0; !finished; ++steps) {
      const RoomId room(static_cast<std::uint64_t>(steps) * 2 + (from_decode ? 1 : 0));
      KvReceiver receiver(*decode->manager, kPrefillAt, room);
      KvSender sender(*prefill->manager, room);
      announce(receiver);
      send_all(sender);
      for (int i = 0; i < steps && !finished; ++i) finished = !net.loop.step();
      if (from_decode) {
        receiver.abort("step");
      } else {
        sender.abort("step");
      }
      net.loop.settle();
      net.loop.advance(61s);
      ASSERT_TRUE(is_terminal(sender.poll())) << steps;
      ASSERT_TRUE(is_terminal(receiver.poll())) << steps;
      // Never a success that the other side doesn't share, once decode has decided.
      if (receiver.poll() == KvStatus::kFailed) {
        ASSERT_EQ(sender.poll(), KvStatus::kFailed) << steps;
      }
      expect_clean();
      ASSERT_LT(steps, 1'000);
    }
  }
  EXPECT_EQ(net.loop.timers(), 0U);
}

// Case L5: 10,000 random cancels.
TEST_F(Abort, L5_TenThousandAtRandom) {
  std::mt19937_64 random(7);
  std::vector<std::unique_ptr<KvSender>> senders;
  std::vector<std::unique_ptr<KvReceiver>> receivers;
  for (std::uint64_t room = 0; room < 10'000; ++room) {
    receivers.push_back(std::make_unique<KvReceiver>(*decode->manager, kPrefillAt, RoomId(room)));
    senders.push_back(std::make_unique<KvSender>(*prefill->manager, RoomId(room)));
    announce(*receivers.back());
    send_all(*senders.back());
    for (std::uint64_t i = random() % 40; i > 0; --i) net.loop.step();
    const std::uint64_t victim = random() % (room + 1);
    if (random() % 2 == 0) {
      receivers[victim]->abort("random");
    } else {
      senders[victim]->abort("random");
    }
  }
  net.loop.settle();
  net.loop.advance(61s);
  for (std::size_t room = 0; room < senders.size(); ++room) {
    ASSERT_TRUE(is_terminal(senders[room]->poll())) << room;
    ASSERT_TRUE(is_terminal(receivers[room]->poll())) << room;
  }
  expect_clean();
  EXPECT_EQ(net.loop.timers(), 0U);
}

}  // namespace
}  // namespace kvmend::kv
