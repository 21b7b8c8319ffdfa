// Rooms of several engines: decode ranks that one sender serves, prefill ranks that write nothing.
#include <gmock/gmock.h>

#include "base/config.h"
#include "kv/fake_cluster.h"

namespace kvmend::kv {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

constexpr const char* kDecode2At = "10.0.0.4:7001";
constexpr const char* kPrefill2At = kOtherAt;

class Destinations : public Cluster {
 protected:
  std::unique_ptr<Node> decode2 = std::make_unique<Node>(net, kDecode2At, KvRole::kDecode, 4);
  const std::vector<KvSource> sources{{.session = kPrefillAt, .destinations = 2}};
  KvReceiver receiver{*decode->manager, sources, kRoom};
  KvReceiver receiver2{*decode2->manager, sources, kRoom};
  int acks = 0;  ///< acknowledgements of aborts that reached a decode engine

  void count_acks() {
    net.lost = [this](const std::string& to, const wire::KvMessage& message) {
      acks += to != kPrefillAt && std::holds_alternative<wire::KvRoomAbortAck>(message) ? 1 : 0;
      return false;
    };
  }
  void expect_all_clean() {
    expect_clean();
    EXPECT_EQ(decode2->manager->stats().rooms, 0U);
    EXPECT_EQ(decode2->engine.grants.size(), 0U);
  }
};

TEST_F(Destinations, TheSenderServesAllOfThem) {
  KvSender sender(*prefill->manager, kRoom);
  announce(receiver);
  send_all(sender);
  net.loop.settle();
  EXPECT_EQ(sender.poll(), KvStatus::kBootstrapping);
  EXPECT_EQ(net.running_writes(), 0U);
  announce(receiver2);
  net.loop.settle();
  EXPECT_EQ(receiver.poll(), KvStatus::kSuccess) << why(receiver.failure());
  EXPECT_EQ(receiver2.poll(), KvStatus::kSuccess) << why(receiver2.failure());
  EXPECT_EQ(sender.poll(), KvStatus::kSuccess) << why(sender.failure());
  expect_landed();
  std::swap(decode, decode2);
  expect_landed();
  std::swap(decode, decode2);
  expect_all_clean();
}

TEST_F(Destinations, BothMayAnnounceBeforeTheSenderExists) {
  announce(receiver);
  announce(receiver2);
  net.loop.settle();
  EXPECT_EQ(prefill->manager->stats().announced, 2U);
  KvSender sender(*prefill->manager, kRoom);
  net.loop.settle();
  EXPECT_EQ(sender.poll(), KvStatus::kWaitingForInput);
  send_all(sender);
  net.loop.settle();
  EXPECT_EQ(sender.poll(), KvStatus::kSuccess) << why(sender.failure());
  EXPECT_EQ(receiver2.poll(), KvStatus::kSuccess);
  expect_all_clean();
}

TEST_F(Destinations, TheSenderSucceedsOnlyWhenTheLastOneHasItsPages) {
  net.lost = [](const std::string& to, const wire::KvMessage& message) {
    return to == kDecode2At && std::holds_alternative<wire::KvRoomDone>(message);
  };
  announce(receiver);
  announce(receiver2);
  KvSender sender(*prefill->manager, kRoom);
  send_all(sender);
  net.loop.settle();
  EXPECT_EQ(receiver.poll(), KvStatus::kSuccess);
  EXPECT_EQ(sender.poll(), KvStatus::kTransferring);
  net.lost = nullptr;
  net.loop.advance(1s);
  EXPECT_EQ(sender.poll(), KvStatus::kSuccess);
  expect_all_clean();
}

TEST_F(Destinations, AThirdAndADisagreeingOneAreRefused) {
  Node third(net, "10.0.0.5:7001", KvRole::kDecode, 5);
  KvReceiver intruder(*third.manager, sources, kRoom);
  KvReceiver liar(*third.manager, std::vector<KvSource>{{.session = kPrefillAt}}, RoomId(2));
  KvReceiver honest(*decode->manager, sources, RoomId(2));
  KvSender sender(*prefill->manager, kRoom);
  KvSender sender2(*prefill->manager, RoomId(2));
  announce(receiver);
  announce(receiver2);
  announce(honest);
  net.loop.settle();
  announce(intruder);
  announce(liar);
  net.loop.settle();
  EXPECT_EQ(intruder.failure().code(), Code::kAlreadyExists);
  EXPECT_EQ(liar.failure().code(), Code::kInvalidArgument);
  EXPECT_THAT(liar.failure().detail(), HasSubstr("for 2 decode engines"));
  EXPECT_EQ(honest.poll(), KvStatus::kWaitingForInput);
  EXPECT_EQ(sender2.poll(), KvStatus::kBootstrapping);
  send_all(sender);
  net.loop.settle();
  EXPECT_EQ(sender.poll(), KvStatus::kSuccess);
}

// The fan-out of an abort: each of the aborting ranks gets an acknowledgement of its own.
TEST_F(Destinations, EachAbortingRankIsAcknowledged) {
  net.hold_writes = true;
  announce(receiver);
  announce(receiver2);
  KvSender sender(*prefill->manager, kRoom);
  send_all(sender);
  net.loop.settle();
  ASSERT_EQ(net.running_writes(), 4U);
  count_acks();
  receiver.abort("client went away");
  receiver2.abort("client went away");
  net.loop.settle();
  EXPECT_EQ(acks, 2);
  EXPECT_TRUE(receiver.abort_acknowledged());
  EXPECT_TRUE(receiver2.abort_acknowledged());
  EXPECT_THAT(sender.failure().detail(), HasSubstr("client went away"));
  expect_all_clean();
}

TEST_F(Destinations, OneRanksAbortEndsTheOthers) {
  announce(receiver);
  announce(receiver2);
  KvSender sender(*prefill->manager, kRoom);
  net.loop.settle();
  receiver.abort("client went away");
  net.loop.settle();
  EXPECT_THAT(receiver2.failure().detail(), HasSubstr("client went away"));
  expect_all_clean();
}

TEST_F(Destinations, ARankThatHasItsPagesKeepsThem) {
  net.lost = [](const std::string& to, const wire::KvMessage& message) {
    return to == kDecode2At && std::holds_alternative<wire::KvRoomDone>(message);
  };
  announce(receiver);
  announce(receiver2);
  KvSender sender(*prefill->manager, kRoom);
  send_all(sender);
  net.loop.settle();
  ASSERT_EQ(receiver.poll(), KvStatus::kSuccess);
  receiver2.abort("client went away");
  net.loop.settle();
  EXPECT_EQ(receiver.poll(), KvStatus::kSuccess);
  EXPECT_EQ(sender.poll(), KvStatus::kFailed);
  expect_all_clean();
}

TEST_F(Destinations, AnAbortIsRepeatedUntilItIsAcknowledgedAndAnsweredEachTime) {
  announce(receiver);
  announce(receiver2);
  KvSender sender(*prefill->manager, kRoom);
  net.loop.settle();
  int lost = 0;
  net.lost = [&](const std::string& to, const wire::KvMessage& message) {
    if (std::holds_alternative<wire::KvRoomAbort>(message) && to == kPrefillAt) return ++lost <= 2;
    return std::holds_alternative<wire::KvRoomAbortAck>(message) && lost <= 3;
  };
  receiver.abort("client went away");
  net.loop.settle();
  EXPECT_EQ(sender.poll(), KvStatus::kWaitingForInput);
  net.loop.advance(10s);
  EXPECT_THAT(sender.failure().detail(), HasSubstr("client went away"));
  EXPECT_TRUE(receiver.abort_acknowledged());
  EXPECT_GE(lost, 4);
  net.loop.advance(31s);
  expect_all_clean();
  EXPECT_EQ(net.loop.timers(), 0U);
}

TEST_F(Destinations, AFlawedAcknowledgementCountsOnce) {
  split_prefill();
  KvReceiver of_two(*decode->manager, {kPrefillAt, kPrefill2At}, RoomId(9));
  announce(of_two);
  KvSender first(*prefill->manager, RoomId(9));
  KvSender second(*second_prefill->manager, RoomId(9));
  net.loop.settle();
  std::optional<wire::KvRoomAbort> told;
  net.lost = [&](const std::string& to, const wire::KvMessage& message) {
    const auto* abort = std::get_if<wire::KvRoomAbort>(&message);
    if (abort == nullptr) return false;
    told = *abort;
    return to == kPrefill2At;
  };
  of_two.abort("client went away");
  net.loop.settle();
  ASSERT_TRUE(told.has_value());
  for (int i = 0; i < 3; ++i)
    net.inject(prefill->engine, decode->engine,
               wire::KvRoomAbortAck{.room = told->room, .attempt = told->attempt});
  net.loop.settle();
  EXPECT_FALSE(of_two.abort_acknowledged());
  net.lost = nullptr;
  net.loop.advance(1s);
  EXPECT_TRUE(of_two.abort_acknowledged());
}

TEST_F(Destinations, ARestartedWriterNeedsNoAcknowledgement) {
  announce(receiver);
  net.loop.settle();
  net.lost = [](const std::string& to, const wire::KvMessage&) { return to == kPrefillAt; };
  receiver.abort("client went away");
  net.loop.settle();
  EXPECT_FALSE(receiver.abort_acknowledged());
  net.start(kPrefillAt);
  net.loop.settle();
  EXPECT_TRUE(receiver.abort_acknowledged());
}

// Case L5 with several engines: whoever gives up, after whichever step, everybody ends with the
// reason and nothing is left.
TEST_F(Destinations, L5_ACancelAtEveryStepLeavesNothing) {
  Node prefill2(net, kPrefill2At, KvRole::kPrefill, 3);
  const std::vector<KvSource> both{{.session = kPrefillAt, .destinations = 2},
                                   {.session = kPrefill2At, .destinations = 2, .dummy = true}};
  for (int who = 0; who < 4; ++who) {
    bool finished = false;
    for (int steps = 0; !finished; ++steps) {
      const RoomId room(static_cast<std::uint64_t>(steps) * 4 + static_cast<std::uint64_t>(who));
      KvReceiver first(*decode->manager, both, room);
      KvReceiver second(*decode2->manager, both, room);
      KvSender writer(*prefill->manager, room);
      KvSender dummy(*prefill2.manager, room);
      announce(first);
      announce(second);
      send_all(writer);
      send_all(dummy);
      for (int i = 0; i < steps && !finished; ++i) finished = !net.loop.step();
      if (who == 0) first.abort("step");
      if (who == 1) second.abort("step");
      if (who == 2) writer.abort("step");
      if (who == 3) dummy.abort("step");
      net.loop.settle();
      net.loop.advance(61s);
      for (const KvStatus status : {first.poll(), second.poll(), writer.poll(), dummy.poll()})
        ASSERT_TRUE(is_terminal(status)) << who << " " << steps;
      // The writer never takes for a success what a receiver has lost.
      if (first.poll() == KvStatus::kFailed || second.poll() == KvStatus::kFailed) {
        ASSERT_EQ(writer.poll(), KvStatus::kFailed) << who << " " << steps;
      }
      expect_all_clean();
      ASSERT_EQ(prefill2.manager->stats().rooms, 0U);
      ASSERT_LT(steps, 1'000);
    }
  }
}

// ------------------------------------------------------------------------------- dummies

class Dummies : public Cluster {
 protected:
  std::unique_ptr<Node> prefill2 = std::make_unique<Node>(net, kPrefill2At, KvRole::kPrefill, 3);
  const std::vector<KvSource> sources{{.session = kPrefillAt},
                                      {.session = kPrefill2At, .dummy = true}};
};

TEST_F(Dummies, WriteNothingAndEndWell) {
  KvReceiver receiver(*decode->manager, sources, kRoom);
  KvSender writer(*prefill->manager, kRoom);
  KvSender dummy(*prefill2->manager, kRoom);
  announce(receiver);
  net.loop.settle();
  EXPECT_EQ(dummy.poll(), KvStatus::kWaitingForInput);
  send_all(writer);
  net.loop.settle();
  EXPECT_EQ(receiver.poll(), KvStatus::kSuccess) << why(receiver.failure());
  EXPECT_EQ(writer.poll(), KvStatus::kSuccess);
  EXPECT_EQ(dummy.poll(), KvStatus::kWaitingForInput);
  send_all(dummy);
  net.loop.settle();
  EXPECT_EQ(dummy.poll(), KvStatus::kSuccess) << why(dummy.failure());
  EXPECT_EQ(dummy.metrics().bytes, 0U);
  expect_landed();
  expect_clean();
  EXPECT_EQ(prefill2->manager->stats().rooms, 0U);
}

TEST_F(Dummies, MustKnowOfTheRoomBeforeItIsASuccess) {
  net.lost = [](const std::string& to, const wire::KvMessage&) { return to == kPrefill2At; };
  KvReceiver receiver(*decode->manager, sources, kRoom);
  KvSender writer(*prefill->manager, kRoom);
  announce(receiver);
  send_all(writer);
  net.loop.settle();
  EXPECT_EQ(receiver.poll(), KvStatus::kTransferring);
  net.lost = nullptr;
  net.loop.advance(2s);
  EXPECT_EQ(receiver.poll(), KvStatus::kSuccess) << why(receiver.failure());
}

TEST_F(Dummies, HearOfAFailureAndTellOfTheirs) {
  for (const bool from_dummy : {true, false}) {
    const RoomId room(from_dummy ? 1 : 2);
    KvReceiver receiver(*decode->manager, sources, room);
    KvSender writer(*prefill->manager, room);
    KvSender dummy(*prefill2->manager, room);
    announce(receiver);
    net.loop.settle();
    (from_dummy ? dummy : writer).abort("rank died");
    net.loop.settle();
    EXPECT_THAT(receiver.failure().detail(), HasSubstr("rank died"));
    EXPECT_THAT(writer.failure().detail(), HasSubstr("rank died"));
    EXPECT_THAT(dummy.failure().detail(), HasSubstr("rank died"));
    expect_clean();
  }
}

TEST_F(Dummies, ARoomOfDummiesAloneIsRefused) {
  KvReceiver receiver(*decode->manager,
                      std::vector<KvSource>{{.session = kPrefillAt, .dummy = true}}, kRoom);
  net.loop.settle();
  EXPECT_EQ(receiver.failure().code(), Code::kInvalidArgument);
}

// ------------------------------------------------------------------------------- bounds (B4)

TEST_F(Cluster, B4_OneEngineCantKeepTheOthersOut) {
  Node other(net, kDecode2At, KvRole::kDecode, 4);
  std::vector<std::unique_ptr<KvReceiver>> flood;
  for (std::uint64_t i = 0; i <= config::kMaxAnnouncedRoomsPerPeer; ++i) {
    flood.push_back(std::make_unique<KvReceiver>(*decode->manager, kPrefillAt, RoomId(i + 10)));
    ASSERT_TRUE(flood.back()->send_metadata(std::vector<std::uint32_t>{1}).is_ok());
    net.loop.settle();
  }
  EXPECT_EQ(prefill->manager->stats().announced, config::kMaxAnnouncedRoomsPerPeer);
  EXPECT_EQ(flood.back()->failure().code(), Code::kResourceExhausted);
  EXPECT_THAT(flood.back()->failure().detail(), HasSubstr(kDecodeAt));
  KvReceiver receiver(*other.manager, kPrefillAt, kRoom);
  announce(receiver);
  net.loop.settle();
  EXPECT_EQ(receiver.poll(), KvStatus::kWaitingForInput) << why(receiver.failure());
  EXPECT_EQ(prefill->manager->stats().announced, config::kMaxAnnouncedRoomsPerPeer + 1);
  net.loop.advance(61s);
  EXPECT_EQ(prefill->manager->stats().announced, 0U);
  EXPECT_EQ(prefill->manager->stats().announced_bytes, 0U);
}

}  // namespace
}  // namespace kvmend::kv
