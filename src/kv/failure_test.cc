// Lost messages, restarts, refusals, deadlines, and peers that lie.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <random>

#include "base/config.h"
#include "kv/fake_cluster.h"

namespace kvmend::kv {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

class Failure : public Cluster {
 protected:
  wire::KvRoomMetadata capture_metadata(KvReceiver& receiver) {
    std::optional<wire::KvRoomMetadata> seen;
    net.lost = [&](const std::string&, const wire::KvMessage& message) {
      if (const auto* one = std::get_if<wire::KvRoomMetadata>(&message)) seen = *one;
      return false;
    };
    announce(receiver);
    net.loop.settle();
    net.lost = nullptr;
    EXPECT_TRUE(seen.has_value());
    return seen.value_or(wire::KvRoomMetadata{});
  }
};

// Case L1: one control message of each type is lost, in turn, in each direction.
TEST_F(Failure, L1_OneMessageOfEachTypeIsLost) {
  for (std::size_t type = 0; type < std::variant_size_v<wire::KvMessage>; ++type) {
    for (int nth = 1; nth <= 3; ++nth) {
      for (const std::string abort : {"", "decode", "prefill"}) {
        SCOPED_TRACE(fmt::format("type {} number {} abort {}", type, nth, abort));
        prefill = std::make_unique<Node>(net, kPrefillAt, KvRole::kPrefill, 1);
        decode = std::make_unique<Node>(net, kDecodeAt, KvRole::kDecode, 2);
        int count = 0;
        net.lost = [&](const std::string&, const wire::KvMessage& message) {
          return message.index() == type && ++count == nth;
        };
        KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
        announce(receiver);
        net.loop.settle();
        KvSender sender(*prefill->manager, kRoom);
        if (abort.empty()) send_all(sender);
        net.loop.settle();
        if (abort == "decode") receiver.abort("on purpose");
        if (abort == "prefill") sender.abort("on purpose");
        net.loop.advance(61s);
        ASSERT_TRUE(is_terminal(sender.poll()));
        ASSERT_TRUE(is_terminal(receiver.poll()));
        if (abort.empty()) {
          EXPECT_EQ(receiver.poll(), KvStatus::kSuccess) << why(receiver.failure());
          EXPECT_EQ(sender.poll(), KvStatus::kSuccess) << why(sender.failure());
        }
        expect_clean();
        EXPECT_EQ(net.loop.timers(), 0U);
      }
    }
  }
}

TEST_F(Failure, WithoutAnyContactBothSidesEndAtTheDeadline) {
  net.lost = [](const std::string&, const wire::KvMessage&) { return true; };
  KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
  announce(receiver);
  KvSender sender(*prefill->manager, kRoom);
  send_all(sender);
  net.loop.advance(59s);
  EXPECT_FALSE(is_terminal(receiver.poll()));
  EXPECT_FALSE(is_terminal(sender.poll()));
  net.loop.advance(1s);
  EXPECT_EQ(receiver.failure().code(), Code::kDeadlineExceeded);
  EXPECT_THAT(receiver.failure().detail(), HasSubstr("hasn't answered the registration"));
  EXPECT_EQ(sender.failure().code(), Code::kDeadlineExceeded);
  EXPECT_THAT(sender.failure().detail(), HasSubstr("decode hasn't announced its pages"));
  expect_clean();
  net.loop.advance(60s);
  EXPECT_EQ(net.loop.timers(), 0U);
}

// Case L3: the sender vanishes; the receiver reclaims by revoking the grant.
TEST_F(Failure, L3_TheSenderVanishesAndALateWriteIsRefused) {
  net.hold_writes = true;
  KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
  announce(receiver);
  KvSender sender(*prefill->manager, kRoom);
  send_all(sender);
  net.loop.settle();
  net.lost = [](const std::string&, const wire::KvMessage&) { return true; };
  net.loop.advance(60s);
  EXPECT_EQ(receiver.failure().code(), Code::kDeadlineExceeded);
  EXPECT_EQ(decode->engine.grants.size(), 0U);
  const auto before = decode->pools.snapshot();
  while (net.land_next()) net.loop.settle();
  EXPECT_EQ(decode->pools.snapshot(), before);
}

// Case R3: what is in flight ends with "peer restarted"; new rooms work after the registration.
TEST_F(Failure, R3_DecodeRestarts) {
  net.hold_writes = true;
  auto receiver = std::make_unique<KvReceiver>(*decode->manager, kPrefillAt, kRoom);
  announce(*receiver);
  KvSender sender(*prefill->manager, kRoom);
  KvReceiver unclaimed(*decode->manager, kPrefillAt, RoomId(5));
  announce(unclaimed);
  send_all(sender);
  net.loop.settle();
  EXPECT_EQ(prefill->manager->stats().announced, 1U);

  net.start(kDecodeAt);  // the old process is gone, with its manager
  net.loop.settle();
  EXPECT_EQ(sender.failure().code(), Code::kPeerRestarted);
  EXPECT_THAT(sender.failure().detail(), HasSubstr("peer restarted"));
  KvSender late(*prefill->manager, RoomId(5));
  net.loop.settle();
  EXPECT_EQ(late.failure().code(), Code::kPeerRestarted);  // at once, not at its deadline
  EXPECT_EQ(prefill->manager->stats().announced, 0U);

  const auto old = std::move(decode);
  decode = std::make_unique<Node>(net, kDecodeAt, KvRole::kDecode, 9);
  net.hold_writes = false;
  KvReceiver fresh(*decode->manager, kPrefillAt, kRoom);
  announce(fresh);
  KvSender sender2(*prefill->manager, kRoom);
  send_all(sender2);
  net.loop.settle();
  EXPECT_EQ(fresh.poll(), KvStatus::kSuccess) << why(fresh.failure());
  EXPECT_EQ(sender2.poll(), KvStatus::kSuccess);
  expect_landed();
  expect_clean();
}

TEST_F(Failure, R3_PrefillRestarts) {
  KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
  announce(receiver);
  net.loop.settle();
  const auto old = std::move(prefill);
  prefill = std::make_unique<Node>(net, kPrefillAt, KvRole::kPrefill, 1);
  net.loop.settle();
  EXPECT_EQ(receiver.failure().code(), Code::kPeerRestarted);
  EXPECT_THAT(receiver.failure().detail(), HasSubstr("peer restarted"));
  EXPECT_EQ(decode->engine.grants.size(), 0U);
  KvReceiver fresh(*decode->manager, kPrefillAt, kRoom);
  announce(fresh);
  KvSender sender(*prefill->manager, kRoom);
  send_all(sender);
  net.loop.settle();
  EXPECT_EQ(fresh.poll(), KvStatus::kSuccess) << why(fresh.failure());
  expect_landed();
}

TEST_F(Failure, ANewRegistrationIsTheReasonToAskAndTheAnswerTellsOfTheRestart) {
  KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
  const wire::KvRoomMetadata metadata = capture_metadata(receiver);
  KvSender sender(*prefill->manager, kRoom);
  net.loop.settle();
  wire::KvRegister again{.registration = 77, .layout = {.page_tokens = 1}};
  FakeEngine stranger(net, kDecodeAt, Incarnation(0xBEEF));
  net.inject(stranger, prefill->engine, again);
  net.loop.settle();
  EXPECT_FALSE(is_terminal(sender.poll()));
  EXPECT_EQ(prefill->engine.registered.back(), stranger.incarnation);
  prefill->engine.observer->on_peer_incarnation(kDecodeAt, decode->engine.incarnation,
                                                stranger.incarnation);
  net.loop.settle();
  EXPECT_EQ(sender.failure().code(), Code::kPeerRestarted);
  // What the replaced process says now is void.
  net.inject(decode->engine, prefill->engine, wire::KvRegister{.registration = 78});
  net.inject(decode->engine, prefill->engine, metadata);
  net.loop.settle();
  EXPECT_EQ(prefill->manager->stats().announced, 0U);
}

// Case I6: refused at registration with both sides' values; lifted only by another registration.
TEST_F(Failure, I6_LayoutsThatDontMatchAreRefusedAtRegistration) {
  decode = std::make_unique<Node>(net, kDecodeAt, KvRole::kDecode, 2, KvOptions{}, 128);
  for (const std::uint64_t room : {1, 2}) {
    KvReceiver receiver(*decode->manager, kPrefillAt, RoomId(room));
    announce(receiver);
    net.loop.settle();
    EXPECT_EQ(receiver.failure().code(), Code::kIncompatible);
    EXPECT_THAT(
        receiver.failure().detail(),
        HasSubstr("item_len of buffer 0 96 (16 rows x 2 of 2 columns) here, 128 (16 rows x 2 "
                  "of 2 columns) there"));
  }
  EXPECT_EQ(prefill->manager->stats().registrations_refused, 1U);
  expect_clean();
  prefill = std::make_unique<Node>(net, kPrefillAt, KvRole::kPrefill, 1, KvOptions{}, 128);
  net.loop.settle();
  KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
  announce(receiver);
  KvSender sender(*prefill->manager, kRoom);
  send_all(sender);
  net.loop.settle();
  EXPECT_EQ(receiver.poll(), KvStatus::kSuccess) << why(receiver.failure());
}

// Case I6: the verdict stands apart from the session's health, and only a new registration lifts
// it; decode asks for one by itself, since the word that prefill's manager was replaced may be
// lost.
TEST_F(Failure, I6_IncompatibleIsLiftedThoughTheNoticeOfTheNewManagerIsLost) {
  decode = std::make_unique<Node>(net, kDecodeAt, KvRole::kDecode, 2, KvOptions{}, 128);
  KvReceiver refused(*decode->manager, kPrefillAt, RoomId(1));
  announce(refused);
  net.loop.settle();
  ASSERT_EQ(refused.failure().code(), Code::kIncompatible);
  net.lost = [](const std::string& to, const wire::KvMessage&) { return to == kDecodeAt; };
  prefill->manager->teardown();
  net.loop.settle();
  net.lost = nullptr;
  prefill->pools = Pools(1, 128);  // the same process, other pools
  prefill->manager = prefill->open(net, KvRole::kPrefill, options);
  KvReceiver early(*decode->manager, kPrefillAt, RoomId(2));
  announce(early);
  net.loop.settle();
  EXPECT_EQ(early.failure().code(), Code::kIncompatible) << "it stands for a while";
  net.loop.advance(config::kKvAskRefusedAgain);
  KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
  announce(receiver);
  KvSender sender(*prefill->manager, kRoom);
  send_all(sender);
  net.loop.settle();
  EXPECT_EQ(receiver.poll(), KvStatus::kSuccess) << why(receiver.failure());
  expect_clean();
}

// Case I8: three pools are declared, two are sent.
TEST_F(Failure, I8_AMissingPoolIsNeverSuccess) {
  KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
  announce(receiver);
  KvSender sender(*prefill->manager, kRoom);
  ASSERT_TRUE(sender.init(5, kSourceRow).is_ok());
  ASSERT_TRUE(sender.send(source).is_ok());  // no mamba row
  net.loop.settle();
  EXPECT_THAT(sender.failure().detail(), HasSubstr("announced 1 mamba pages, prefill sends 0"));
  EXPECT_THAT(receiver.failure().detail(), HasSubstr("mamba"));
  expect_clean();
}

TEST_F(Failure, I8_AWriterThatDeclaresLessIsNotBelieved) {
  KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
  const wire::KvRoomMetadata metadata = capture_metadata(receiver);
  net.inject(prefill->engine, decode->engine,
             wire::KvRoomDone{.room = kRoom,
                              .attempt = metadata.attempt,
                              .grant = metadata.grant,
                              .declared_bytes = {0, 0, 0},
                              .declared_pages = 5});
  net.loop.settle();
  EXPECT_EQ(receiver.failure().code(), Code::kProtocolError);
  EXPECT_THAT(receiver.failure().detail(), HasSubstr("0 of 1920 bytes of kv were declared"));
  EXPECT_EQ(decode->engine.grants.size(), 0U);
  net.loop.advance(61s);  // until then the reason is kept for the sender
  expect_clean();
}

// Two ranks with one head each, and only one of them is listed.
TEST_F(Failure, I8_ARankThatIsLeftOutFailsTheRoomBeforeAnythingIsAnnounced) {
  split_prefill();
  KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
  announce(receiver);
  net.loop.settle();
  EXPECT_EQ(receiver.failure().code(), Code::kIncompatible);
  EXPECT_THAT(receiver.failure().detail(),
              HasSubstr("bring 48 of 96 bytes of each page of kv buffer 0 (layer 0)"));
  EXPECT_EQ(prefill->manager->stats().announced, 0U);
  expect_clean();
}

TEST_F(Failure, AWriterThatDeclaresWhatHasNotLandedIsNotBelieved) {
  for (const std::vector<std::uint64_t>& declared :
       {std::vector<std::uint64_t>{1920, 56, 64}, {1920, 56}, {}}) {
    KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
    const wire::KvRoomMetadata metadata = capture_metadata(receiver);
    net.inject(prefill->engine, decode->engine,
               wire::KvRoomDone{.room = kRoom,
                                .attempt = metadata.attempt,
                                .grant = metadata.grant,
                                .declared_bytes = declared});
    net.loop.settle();
    EXPECT_EQ(receiver.failure().code(), Code::kProtocolError);
    EXPECT_EQ(decode->engine.grants.size(), 0U);
  }
  net.loop.advance(61s);
  expect_clean();
}

// Case I9: decode has the room at Success and appends; then the retry arrives.
TEST_F(Failure, I9_ALateRetryIsAnsweredAndTouchesNothing) {
  KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
  const wire::KvRoomMetadata metadata = capture_metadata(receiver);
  std::optional<wire::KvRoomDone> done;
  bool lose_answer = true;
  net.lost = [&](const std::string& to, const wire::KvMessage& message) {
    if (const auto* one = std::get_if<wire::KvRoomDone>(&message)) done = *one;
    return to == kPrefillAt && lose_answer && std::holds_alternative<wire::KvRoomStatus>(message);
  };
  KvSender sender(*prefill->manager, kRoom);
  send_all(sender);
  net.loop.settle();
  ASSERT_EQ(receiver.poll(), KvStatus::kSuccess);
  EXPECT_EQ(sender.poll(), KvStatus::kTransferring);
  EXPECT_EQ(decode->engine.grants.ended(metadata.grant), memory::GrantEnd::kCompleted);

  decode->pools.memory[0]->at(21 * Pools::kPageBytes + 90) = std::byte{0xEE};  // the appended token
  const auto mine = decode->pools.snapshot();
  FakePort port(prefill->engine);
  Status late;
  port.write({.peer = *parse_address(kDecodeAt),
              .target = decode->engine.incarnation,
              .grant = metadata.grant,
              .pieces = {{.local = prefill->pools.memory[0]->data(),
                          .region = decode->engine.regions.list().front().ref,
                          .length = 96}},
              .on_done = [&](const Status& status, const WriteCost&) { late = status; }});
  net.loop.settle();
  EXPECT_EQ(late.code(), Code::kAlreadyExists);
  EXPECT_EQ(decode->pools.snapshot(), mine);

  lose_answer = false;
  net.loop.advance(10s);  // prefill asks again
  EXPECT_EQ(sender.poll(), KvStatus::kSuccess) << why(sender.failure());
  EXPECT_GE(prefill->manager->stats().messages_repeated, 1U);
  EXPECT_GE(decode->manager->stats().late_messages, 1U);
  EXPECT_EQ(decode->pools.snapshot(), mine);
  expect_clean();
}

// Case B4: bounded table, expiry, counter. Several times what the table holds stands for the
// million.
TEST_F(Failure, B4_AFloodOfUnknownRoomsIsAnnounced) {
  KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
  announce(receiver);
  net.loop.settle();
  std::uint64_t refused = 0;
  net.lost = [&](const std::string& to, const wire::KvMessage& message) {
    if (to != kDecodeAt) return false;
    const auto* status = std::get_if<wire::KvRoomStatus>(&message);
    refused += status != nullptr && status->code == Code::kResourceExhausted ? 1 : 0;
    return true;
  };
  PortObserver* observer = prefill->engine.observer;
  constexpr std::uint64_t kRooms = 4 * config::kMaxAnnouncedRoomsPerPeer;
  for (std::uint64_t room = 0; room < kRooms; ++room) {
    const std::string body = wire::encode_kv(wire::KvRoomMetadata{.room = RoomId(room),
                                                                  .attempt = 4'000'000'000U,
                                                                  .grant = GrantId(99),
                                                                  .expires_in = 3'600'000ms,
                                                                  .pages = {{0, {1, 2, 3}}}});
    observer->on_message(kDecodeAt, decode->engine.incarnation, FakeNet::bytes_of(body));
    if (room % 1'000 == 0) net.loop.settle();
  }
  net.loop.settle();
  const KvManagerStats stats = prefill->manager->stats();
  EXPECT_EQ(stats.announced, config::kMaxAnnouncedRoomsPerPeer);
  EXPECT_EQ(stats.announced_refused, kRooms + 1 - config::kMaxAnnouncedRoomsPerPeer);
  EXPECT_EQ(refused, stats.announced_refused);
  EXPECT_LT(stats.announced_bytes, config::kMaxAnnouncedBytes);
  net.lost = nullptr;
  net.loop.advance(61s);
  EXPECT_EQ(prefill->manager->stats().announced, 0U);
  EXPECT_EQ(prefill->manager->stats().announced_bytes, 0U);
  EXPECT_EQ(prefill->manager->stats().announced_expired, config::kMaxAnnouncedRoomsPerPeer);
  EXPECT_EQ(receiver.poll(), KvStatus::kFailed);
}

TEST_F(Failure, AnAnnouncedRoomThatNobodyOpensIsReportedToDecode) {
  KvOptions brief{.room_deadline = 60s, .announced_ttl = 2s};
  prefill = std::make_unique<Node>(net, kPrefillAt, KvRole::kPrefill, 1, brief);
  KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
  announce(receiver);
  net.loop.advance(2s);
  EXPECT_EQ(receiver.failure().code(), Code::kDeadlineExceeded);
  EXPECT_THAT(receiver.failure().detail(), HasSubstr("prefill never opened it"));
  expect_clean();
}

TEST_F(Failure, OutOfRangePagesFromDecodeAreRefused) {
  KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
  wire::KvRoomMetadata metadata = capture_metadata(receiver);
  metadata.room = RoomId(77);
  metadata.pages = {{0, {31, 32}}};
  net.inject(decode->engine, prefill->engine, metadata);
  metadata.room = RoomId(78);
  metadata.pages = {{3, {1}}};
  net.inject(decode->engine, prefill->engine, metadata);
  std::vector<std::string> reasons;
  net.lost = [&](const std::string&, const wire::KvMessage& message) {
    if (const auto* status = std::get_if<wire::KvRoomStatus>(&message))
      reasons.push_back(status->reason);
    return false;
  };
  net.loop.settle();
  ASSERT_EQ(reasons.size(), 2U);
  EXPECT_THAT(reasons[0], HasSubstr("page 32 of component 0: decode registered 32 pages"));
  EXPECT_THAT(reasons[1], HasSubstr("component 3: decode registered 3"));
}

TEST_F(Failure, GarbageAndUnknownRoomsChangeNothing) {
  KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
  announce(receiver);
  KvSender sender(*prefill->manager, kRoom);
  net.loop.settle();
  for (const auto& [from, to] :
       {std::pair{decode.get(), prefill.get()}, std::pair{prefill.get(), decode.get()}}) {
    net.deliver(from->engine, to->engine.session_id, to->engine.incarnation, "\xFF garbage");
    net.inject(from->engine, to->engine, wire::KvRoomDone{.room = RoomId(9), .grant = GrantId(7)});
    net.inject(from->engine, to->engine, wire::KvRoomStatus{.room = RoomId(9), .status = 4});
    net.inject(from->engine, to->engine, wire::KvRoomStatus{.room = kRoom, .attempt = 99});
    net.inject(from->engine, to->engine, wire::KvRoomAbort{.room = RoomId(9)});
    net.inject(from->engine, to->engine, wire::KvRoomAbort{.room = kRoom, .attempt = 99});
    net.inject(from->engine, to->engine, wire::KvRoomAbortAck{.room = RoomId(9)});
    net.inject(from->engine, to->engine, wire::KvRegisterReply{.registration = 99});
  }
  FakeEngine stranger(net, "", Incarnation(5));
  net.inject(stranger, prefill->engine, wire::KvRegister{.registration = 1});
  net.loop.settle();
  EXPECT_EQ(prefill->manager->stats().malformed_messages, 2U);
  EXPECT_GE(prefill->manager->stats().unknown_messages, 4U);
  send_all(sender);
  net.loop.settle();
  EXPECT_EQ(receiver.poll(), KvStatus::kSuccess) << why(receiver.failure());
  EXPECT_EQ(sender.poll(), KvStatus::kSuccess) << why(sender.failure());
  expect_landed();
}

// Case L2: a hold ends on proof of death, at once; without proof (a host that vanished, a slow but
// living receiver) only at the room's deadline.
TEST_F(Failure, L2_HoldsEndOnProofOfDeathOrAtTheDeadline) {
  for (const bool proven : {true, false}) {
    SCOPED_TRACE(proven);
    prefill = std::make_unique<Node>(net, kPrefillAt, KvRole::kPrefill, 1);
    decode = std::make_unique<Node>(net, kDecodeAt, KvRole::kDecode, 2);
    net.hold_writes = true;
    std::vector<std::unique_ptr<KvReceiver>> receivers;
    std::vector<std::unique_ptr<KvSender>> senders;
    for (std::uint64_t i = 0; i < 100; ++i) {
      receivers.push_back(std::make_unique<KvReceiver>(*decode->manager, kPrefillAt, RoomId(i)));
      announce(*receivers.back());
      senders.push_back(std::make_unique<KvSender>(*prefill->manager, RoomId(i)));
      // Half of them have writes in flight, the others wait for their caller.
      if (i % 2 == 0) send_all(*senders.back());
    }
    KvReceiver unclaimed(*decode->manager, kPrefillAt, RoomId(500));
    announce(unclaimed);
    net.loop.settle();
    net.kill(decode->engine, proven);
    net.loop.settle();
    if (!proven) {
      net.loop.advance(59s);
      for (const auto& sender : senders) ASSERT_FALSE(is_terminal(sender->poll()));
      net.loop.advance(1s);
    }
    for (const auto& sender : senders) {
      ASSERT_EQ(sender->failure().code(), proven ? Code::kPeerRestarted : Code::kDeadlineExceeded);
      if (proven) {
        ASSERT_THAT(sender->failure().detail(), HasSubstr("has died"));
      }
    }
    EXPECT_EQ(prefill->engine.running.size(), 0U);
    EXPECT_EQ(prefill->manager->stats().rooms, 0U);
    if (proven) {
      KvSender late(*prefill->manager, RoomId(500));
      net.loop.settle();
      EXPECT_THAT(late.failure().detail(), HasSubstr("has died"));
    }
    net.loop.advance(120s);
    EXPECT_EQ(prefill->manager->stats().announced, 0U);
  }
}

TEST_F(Failure, L2_ADeadPrefillFreesDecodesPagesAtOnce) {
  KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
  announce(receiver);
  net.loop.settle();
  net.kill(prefill->engine, true);
  net.loop.settle();
  EXPECT_EQ(receiver.failure().code(), Code::kPeerRestarted);
  EXPECT_EQ(decode->engine.grants.size(), 0U);
  EXPECT_TRUE(receiver.abort_acknowledged());
}

// The news of the old process's death arrives after its successor has registered.
TEST_F(Failure, L2_ALateObituaryHarmsNoSuccessor) {
  KvReceiver old(*decode->manager, kPrefillAt, RoomId(1));
  announce(old);
  net.loop.settle();
  const Incarnation dead = decode->engine.incarnation;
  const auto gone = std::move(decode);
  decode = std::make_unique<Node>(net, kDecodeAt, KvRole::kDecode, 9);
  net.loop.settle();
  KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
  announce(receiver);
  KvSender sender(*prefill->manager, kRoom);
  net.loop.settle();
  prefill->engine.observer->on_peer_died(kDecodeAt, dead);
  send_all(sender);
  net.loop.settle();
  EXPECT_EQ(receiver.poll(), KvStatus::kSuccess) << why(receiver.failure());
}

// Case L4: one of four transfers hangs; the others go on.
TEST_F(Failure, L4_OneHangingTransferHoldsUpNobody) {
  net.hold_writes = true;
  std::vector<std::unique_ptr<KvReceiver>> receivers;
  std::vector<std::unique_ptr<KvSender>> senders;
  for (std::uint64_t i = 0; i < 4; ++i) {
    receivers.push_back(std::make_unique<KvReceiver>(*decode->manager, kPrefillAt, RoomId(i)));
    announce(*receivers.back());
    senders.push_back(std::make_unique<KvSender>(*prefill->manager, RoomId(i)));
    send_all(*senders.back());
    net.loop.settle();
    if (i == 0) continue;  // its two writes never land
    for (int write = 0; write < 2; ++write)
      net.finish(prefill->engine, prefill->engine.running.rbegin()->first);
    net.loop.settle();
    EXPECT_EQ(receivers.back()->poll(), KvStatus::kSuccess);
    EXPECT_EQ(senders.back()->poll(), KvStatus::kSuccess);
  }
  EXPECT_EQ(senders[0]->poll(), KvStatus::kTransferring);
  EXPECT_EQ(receivers[0]->poll(), KvStatus::kWaitingForInput);
  net.loop.advance(60s);
  EXPECT_EQ(senders[0]->failure().code(), Code::kDeadlineExceeded);
  expect_clean();
}

// Case I4: four writers, random delays, one row of the aux pool that every room reuses. Only the
// row of the room that owns it now ever lands there, and nothing aborts that wasn't aborted.
TEST_F(Failure, I4_FourWritersAndOneReusedRow) {
  std::vector<std::unique_ptr<Node>> writers;
  for (int i = 0; i < 4; ++i)
    writers.push_back(
        std::make_unique<Node>(net, fmt::format("10.0.1.{}:7001", i), KvRole::kPrefill, 10 + i));
  net.hold_writes = true;
  std::mt19937_64 random(11);
  std::uint64_t succeeded = 0;
  for (std::uint64_t round = 0; round < 100'000; ++round) {
    Node& writer = *writers[random() % 4];
    KvReceiver receiver(*decode->manager, writer.engine.session_id, RoomId(round));
    receiver.init();
    ASSERT_TRUE(receiver.send_metadata(std::vector<std::uint32_t>{3}, kTargetRow).is_ok());
    KvSender sender(*writer.manager, RoomId(round));
    const auto row = static_cast<std::uint32_t>(random() % Pools::kRows);
    ASSERT_TRUE(sender.init(1, row).is_ok());
    ASSERT_TRUE(sender.send(std::vector<std::uint32_t>{5}).is_ok());
    const bool abandoned = random() % 4 == 0;
    if (abandoned) {
      // The receiver gives up; its write stays under way and lands in a later room's time.
      for (std::uint64_t steps = random() % 12; steps > 0; --steps) net.loop.step();
      receiver.abort("gave up");
      net.loop.step();
      if (random() % 2 == 0) net.loop.settle();
      continue;
    }
    net.loop.settle();
    for (std::uint64_t late = random() % 3; late > 0; --late) net.land_next();
    net.loop.settle();
    while (!is_terminal(receiver.poll()) && net.land_next()) net.loop.settle();
    ASSERT_EQ(receiver.poll(), KvStatus::kSuccess) << round << why(receiver.failure());
    ++succeeded;
    const Bytes here = writer.pools.page(1, 0, row);
    const Bytes there = decode->pools.page(1, 0, kTargetRow);
    ASSERT_EQ(std::memcmp(here.data(), there.data(), here.size()), 0) << round;
  }
  EXPECT_GT(succeeded, 70'000U);
}

}  // namespace
}  // namespace kvmend::kv
