// The life of a room over fake engines, when nothing goes wrong, and what callers can do wrong.
#include <gmock/gmock.h>

#include "kv/fake_cluster.h"

namespace kvmend::kv {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

class Room : public Cluster {};

TEST_F(Room, MovesEveryComponentAndNothingElse) {
  const auto before = decode->pools.snapshot();
  KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
  KvSender sender(*prefill->manager, kRoom);
  net.loop.settle();
  EXPECT_EQ(receiver.poll(), KvStatus::kBootstrapping);
  EXPECT_EQ(sender.poll(), KvStatus::kBootstrapping);
  announce(receiver);
  net.loop.settle();
  EXPECT_EQ(receiver.poll(), KvStatus::kWaitingForInput);
  EXPECT_EQ(sender.poll(), KvStatus::kWaitingForInput);
  EXPECT_EQ(decode->engine.grants.size(), 1U);

  net.hold_writes = true;
  send_all(sender);
  net.loop.settle();
  EXPECT_EQ(sender.poll(), KvStatus::kTransferring);
  EXPECT_EQ(receiver.poll(), KvStatus::kWaitingForInput);  // nothing has come yet
  EXPECT_EQ(net.running_writes(), 2U);  // the second is queued while the first moves
  net.loop.advance(2s);
  ASSERT_TRUE(net.land_next());
  EXPECT_EQ(receiver.poll(), KvStatus::kTransferring);  // it needs no word of prefill
  while (net.land_next()) net.loop.settle();
  EXPECT_EQ(sender.poll(), KvStatus::kSuccess) << why(sender.failure());
  EXPECT_EQ(receiver.poll(), KvStatus::kSuccess) << why(receiver.failure());
  expect_landed();
  expect_clean();

  std::size_t changed = 0;
  const auto after = decode->pools.snapshot();
  for (std::size_t m = 0; m < after.size(); ++m)
    for (std::size_t i = 0; i < after[m].size(); ++i)
      changed += before[m][i] != after[m][i] ? 1 : 0;
  const std::size_t moved = source.size() * 4 * Pools::kPageBytes + 56 + 64;
  EXPECT_LE(changed, moved);
  EXPECT_EQ(sender.metrics().bytes, moved);
  EXPECT_EQ(receiver.metrics().bytes, moved);
  EXPECT_EQ(sender.metrics().chunks, 2U);
  EXPECT_EQ(sender.metrics().transferring, 2s);
  EXPECT_EQ(decode->manager->stats().bytes, moved);
}

TEST_F(Room, IsAnnouncedBeforeItsSenderExists) {
  KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
  announce(receiver);
  net.loop.settle();
  EXPECT_EQ(prefill->manager->stats().announced, 1U);
  KvSender sender(*prefill->manager, kRoom, kDecodeAt);
  net.loop.settle();
  EXPECT_EQ(sender.poll(), KvStatus::kWaitingForInput);
  send_all(sender);
  net.loop.settle();
  EXPECT_EQ(receiver.poll(), KvStatus::kSuccess) << why(receiver.failure());
  expect_landed();
  expect_clean();
}

TEST_F(Room, TellsPrefillWhatDecodeHasAlready) {
  KvSender sender(*prefill->manager, kRoom);
  KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
  net.loop.settle();
  EXPECT_EQ(sender.prefix_tokens(), 0U);
  EXPECT_EQ(sender.decode_session(), "");
  receiver.init();
  ASSERT_TRUE(receiver.send_metadata(target, kTargetRow, {{2}}, 4096).is_ok());
  net.loop.settle();
  EXPECT_EQ(sender.poll(), KvStatus::kWaitingForInput);
  EXPECT_EQ(sender.prefix_tokens(), 4096U);
  EXPECT_EQ(sender.decode_session(), kDecodeAt);
}

TEST_F(Room, PairsWindowsOfDifferentLengthFromTheFront) {
  for (Node* node : {prefill.get(), decode.get()}) {
    node->manager.reset();
    node->pools.layout.components[2].pool = KvPool::kSwa;
  }
  prefill->manager = prefill->open(net, KvRole::kPrefill, options);
  decode->manager = decode->open(net, KvRole::kDecode, options);
  const auto before = decode->pools.snapshot();
  KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
  KvSender sender(*prefill->manager, kRoom);
  receiver.init();
  ASSERT_TRUE(receiver.send_metadata(target, kTargetRow, {{2, 3, 4}}).is_ok());
  ASSERT_TRUE(sender.init(static_cast<std::uint32_t>(source.size()), kSourceRow).is_ok());
  ASSERT_TRUE(sender.send(source, {{5, 6}}).is_ok());
  net.loop.settle();
  EXPECT_EQ(receiver.poll(), KvStatus::kSuccess) << why(receiver.failure());
  EXPECT_EQ(sender.poll(), KvStatus::kSuccess) << why(sender.failure());
  expect_landed();
  expect_same(2, 0, 6, 3);
  const Bytes left = decode->pools.page(2, 0, 4);
  EXPECT_EQ(std::memcmp(left.data(), before.back().data() + 4 * left.size(), left.size()), 0);
}

TEST_F(Room, TakesChunksBeforeTheMetadata) {
  KvSender sender(*prefill->manager, kRoom);
  send_all(sender);
  net.loop.settle();
  KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
  announce(receiver);
  net.loop.settle();
  EXPECT_EQ(sender.poll(), KvStatus::kSuccess);
  EXPECT_EQ(receiver.poll(), KvStatus::kSuccess);
  expect_landed();
}

TEST_F(Room, RegistersOnceForManyRooms) {
  int registrations = 0;
  net.lost = [&](const std::string&, const wire::KvMessage& message) {
    registrations += std::holds_alternative<wire::KvRegister>(message) ? 1 : 0;
    return false;
  };
  for (std::uint64_t room = 0; room < 20; ++room) {
    KvReceiver receiver(*decode->manager, kPrefillAt, RoomId(room));
    KvSender sender(*prefill->manager, RoomId(room));
    announce(receiver);
    send_all(sender);
    net.loop.settle();
    ASSERT_EQ(receiver.poll(), KvStatus::kSuccess);
    ASSERT_EQ(sender.poll(), KvStatus::kSuccess);
  }
  EXPECT_EQ(registrations, 1);
  EXPECT_EQ(net.loop.timers(), 0U);
  expect_clean();
}

TEST_F(Room, OfNoPagesNeedsOneEmptySend) {
  KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
  receiver.init();
  ASSERT_TRUE(receiver.send_metadata({}, kTargetRow).is_ok());
  KvSender sender(*prefill->manager, kRoom);
  ASSERT_TRUE(sender.init(0, kSourceRow).is_ok());
  ASSERT_TRUE(sender.send({}).is_ok());
  net.loop.settle();
  EXPECT_EQ(receiver.poll(), KvStatus::kSuccess) << why(receiver.failure());
  expect_same(1, 0, kSourceRow, kTargetRow);
}

// Two prefill ranks with half of the heads each: Success needs both.
TEST_F(Room, WaitsForEveryWriter) {
  split_prefill();
  KvReceiver receiver(*decode->manager, {kPrefillAt, kOtherAt}, kRoom);
  announce(receiver);
  KvSender first(*prefill->manager, kRoom);
  send_all(first);
  net.loop.settle();
  EXPECT_EQ(receiver.poll(), KvStatus::kTransferring);
  EXPECT_EQ(first.poll(), KvStatus::kTransferring);
  KvSender second(*second_prefill->manager, kRoom);
  send_all(second);
  net.loop.settle();
  EXPECT_EQ(receiver.poll(), KvStatus::kSuccess);
  EXPECT_EQ(first.poll(), KvStatus::kSuccess);
  EXPECT_EQ(second.poll(), KvStatus::kSuccess);
  expect_clean();
}

// Case B1: the second is refused, the first goes on.
TEST_F(Room, B1_ASecondRequestForTheRoomIsRefused) {
  KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
  KvReceiver receiver2(*decode->manager, kPrefillAt, kRoom);
  KvSender sender(*prefill->manager, kRoom);
  KvSender sender2(*prefill->manager, kRoom);
  net.loop.settle();
  EXPECT_EQ(receiver2.failure().code(), Code::kAlreadyExists);
  EXPECT_EQ(sender2.failure().code(), Code::kAlreadyExists);
  EXPECT_THAT(sender2.failure().detail(), HasSubstr(std::to_string(kRoom.value)));

  announce(receiver);
  net.loop.settle();
  Node other(net, "10.0.0.4:7001", KvRole::kDecode, 3);
  KvReceiver receiver3(*other.manager, kPrefillAt, kRoom);
  announce(receiver3);
  net.loop.settle();
  EXPECT_EQ(receiver3.failure().code(), Code::kAlreadyExists) << why(receiver3.failure());
  EXPECT_THAT(receiver3.failure().detail(), HasSubstr(kDecodeAt));
  EXPECT_EQ(other.engine.grants.size(), 0U);

  receiver2.clear();
  sender2.clear();
  send_all(sender);
  net.loop.settle();
  EXPECT_EQ(receiver.poll(), KvStatus::kSuccess);
  EXPECT_EQ(sender.poll(), KvStatus::kSuccess);
  expect_landed();
}

TEST_F(Room, TwoEnginesAnnounceTheSameUnclaimedRoom) {
  Node other(net, "10.0.0.4:7001", KvRole::kDecode, 3);
  KvReceiver first(*decode->manager, kPrefillAt, kRoom);
  announce(first);
  net.loop.settle();
  KvReceiver second(*other.manager, kPrefillAt, kRoom);
  announce(second);
  net.loop.settle();
  EXPECT_EQ(second.failure().code(), Code::kAlreadyExists);
  EXPECT_EQ(first.poll(), KvStatus::kWaitingForInput);
}

TEST_F(Room, NumberIsFreeAgainAfterTheEnd) {
  for (int round = 0; round < 3; ++round) {
    KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
    KvSender sender(*prefill->manager, kRoom);
    announce(receiver);
    send_all(sender);
    net.loop.settle();
    EXPECT_EQ(receiver.poll(), KvStatus::kSuccess) << round << why(receiver.failure());
    EXPECT_EQ(sender.poll(), KvStatus::kSuccess) << round << why(sender.failure());
  }
}

// Bad input: a distinct error that names the values; room and tables intact.
TEST_F(Room, RefusesBadArgumentsAndGoesOn) {
  KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
  receiver.init();
  const std::vector<std::uint32_t> beyond{1, 32};
  const std::vector<std::uint32_t> twice{1, 2, 1};
  Status status = receiver.send_metadata(beyond);
  EXPECT_EQ(status.code(), Code::kOutOfRange);
  EXPECT_THAT(status.detail(), HasSubstr("kv page 32: the pool has 32 pages"));
  status = receiver.send_metadata(twice);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(status.detail(), HasSubstr("kv page 1 is given twice"));
  status = receiver.send_metadata(target, 8);
  EXPECT_THAT(status.detail(), HasSubstr("aux page 8: the pool has 8 pages"));
  status = receiver.send_metadata(target, 1, {{1}, {2}});
  EXPECT_THAT(status.detail(), HasSubstr("indices for 2 state pools: the layout has 1"));
  announce(receiver);
  EXPECT_EQ(receiver.send_metadata(target).code(), Code::kInvalidArgument);

  KvSender sender(*prefill->manager, kRoom);
  EXPECT_THAT(sender.send(source).detail(), HasSubstr("send before init"));
  EXPECT_EQ(sender.init(5, 99).code(), Code::kOutOfRange);
  ASSERT_TRUE(sender.init(5, kSourceRow).is_ok());
  EXPECT_EQ(sender.init(5).code(), Code::kInvalidArgument);
  EXPECT_EQ(sender.send(beyond).code(), Code::kOutOfRange);
  const std::vector<std::uint32_t> six(6, 0);
  EXPECT_THAT(sender.send(six).detail(), HasSubstr("6 pages after 0 of 5"));
  EXPECT_THAT(sender.send(std::span(source).first(2), {{5}}).detail(),
              HasSubstr("state pages come with the last chunk"));
  ASSERT_TRUE(sender.send(source, {{5}}).is_ok());
  EXPECT_THAT(sender.send({}).detail(), HasSubstr("all 5 pages have been sent"));
  net.loop.settle();
  EXPECT_EQ(receiver.poll(), KvStatus::kSuccess) << why(receiver.failure());
  EXPECT_EQ(sender.poll(), KvStatus::kSuccess);
  expect_landed();
}

TEST_F(Room, RefusesWrongRolesRoomsAndPeers) {
  KvSender sender(*decode->manager, kRoom);
  EXPECT_EQ(sender.failure().code(), Code::kInvalidArgument);
  KvReceiver receiver(*prefill->manager, kPrefillAt, kRoom);
  EXPECT_EQ(receiver.failure().code(), Code::kInvalidArgument);
  KvReceiver beyond(*decode->manager, kPrefillAt, RoomId(std::uint64_t{1} << 63));
  EXPECT_THAT(beyond.failure().detail(), HasSubstr("beyond 63 bits"));
  KvReceiver nonsense(*decode->manager, "somewhere", kRoom);
  KvReceiver nobody(*decode->manager, std::vector<std::string>{}, kRoom);
  net.loop.settle();
  EXPECT_THAT(nonsense.failure().detail(), HasSubstr("somewhere"));
  EXPECT_EQ(nobody.failure().code(), Code::kInvalidArgument);
  // A decode engine where prefill should be: said at once, not after the deadline.
  KvReceiver self(*decode->manager, kDecodeAt, kRoom);
  announce(self);
  net.loop.settle();
  EXPECT_THAT(self.failure().detail(), HasSubstr("is a decode engine"));
  expect_clean();
}

// Decode keeps layer 0 in host memory and layer 1 on the device.
TEST_F(Room, DeviceLayersHavePageNumbersOfTheirOwn) {
  decode->manager->teardown();
  std::vector<KvComponent>& pools = decode->pools.layout.components;
  KvComponent device = pools[0];
  device.pool = KvPool::kKvDevice;
  device.buffers.erase(device.buffers.begin(), device.buffers.begin() + 2);
  device.layer_ids = {1, 1};
  pools[0].buffers.resize(2);
  pools[0].layer_ids.resize(2);
  pools.push_back(device);
  decode->manager = decode->open(net, KvRole::kDecode, options);
  const std::vector<std::uint32_t> on_device{11, 12, 13, 0, 31};
  KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
  receiver.init();
  ASSERT_TRUE(receiver.send_metadata(target, kTargetRow, {{2}}, 0, on_device).is_ok());
  KvSender sender(*prefill->manager, kRoom);
  send_all(sender);
  net.loop.settle();
  ASSERT_EQ(receiver.poll(), KvStatus::kSuccess) << why(receiver.failure());
  const auto expect_page = [&](std::size_t buffer, std::uint32_t from, std::size_t component,
                               std::size_t at, std::uint32_t to) {
    EXPECT_TRUE(std::ranges::equal(prefill->pools.page(0, buffer, from),
                                   decode->pools.page(component, at, to)))
        << buffer << " page " << from;
  };
  for (std::size_t i = 0; i < source.size(); ++i)
    for (std::size_t half = 0; half < 2; ++half) {
      expect_page(half, source[i], 0, half, target[i]);
      expect_page(2 + half, source[i], 3, half, on_device[i]);
    }
  expect_clean();
  // Without the device pages nothing is complete (I8).
  KvReceiver without(*decode->manager, kPrefillAt, RoomId(2));
  announce(without);
  KvSender second(*prefill->manager, RoomId(2));
  send_all(second);
  net.loop.settle();
  EXPECT_THAT(without.failure().detail(),
              HasSubstr("announced 0 kv_device pages, prefill sends 5"));
}

// KvShare::kLeader: decode talks to context rank 0 alone, and the others' rooms end by themselves.
TEST_F(Room, OfAContextRankThatBringsNothingEndsWithItsLastChunk) {
  Node second(net, kOtherAt, KvRole::kPrefill, 1, options, Pools::kPageBytes,
              KvRank{.cp_rank = 1, .cp_size = 2});
  KvSender sender(*second.manager, kRoom);
  net.loop.settle();
  EXPECT_EQ(sender.poll(), KvStatus::kWaitingForInput);
  ASSERT_TRUE(sender.init(5, kSourceRow).is_ok());
  ASSERT_TRUE(sender.send(std::span(source).first(2)).is_ok());
  net.loop.settle();
  EXPECT_EQ(sender.poll(), KvStatus::kWaitingForInput);
  ASSERT_TRUE(sender.send(std::span(source).subspan(2), {{5}}).is_ok());
  net.loop.settle();
  EXPECT_EQ(sender.poll(), KvStatus::kSuccess) << why(sender.failure());
  EXPECT_EQ(second.manager->stats().rooms, 0U);
  EXPECT_EQ(net.loop.timers(), 0U);
}

TEST_F(Room, WhosePageCountsDifferFailsOnBothSidesAtOnce) {
  KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
  announce(receiver);
  KvSender sender(*prefill->manager, kRoom);
  ASSERT_TRUE(sender.init(4, kSourceRow).is_ok());
  net.loop.settle();
  EXPECT_THAT(sender.failure().detail(), HasSubstr("announced 5 kv pages, prefill sends 4"));
  EXPECT_THAT(receiver.failure().detail(), HasSubstr("announced 5 kv pages, prefill sends 4"));
  expect_clean();
}

TEST_F(Room, MetricsTellTheTimeInEachStatusAndTheReason) {
  KvSender sender(*prefill->manager, kRoom);
  net.loop.advance(3s);
  KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
  announce(receiver);
  net.loop.advance(4s);
  sender.abort("out of pages");
  net.loop.advance(5s);
  const KvRoomMetrics metrics = sender.metrics();
  EXPECT_EQ(metrics.bootstrapping, 3s);
  EXPECT_EQ(metrics.waiting, 4s);
  EXPECT_EQ(metrics.transferring, 0s);
  EXPECT_THAT(metrics.reason, HasSubstr("out of pages"));
}

// Overlap with compute: a chunk isn't read before its gate is open; the others go past it.
TEST_F(Room, AChunkWaitsForItsGate) {
  KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
  announce(receiver);
  KvSender sender(*prefill->manager, kRoom);
  KvGate gate;
  KvGate last;
  ASSERT_TRUE(sender.init(5, kSourceRow).is_ok());
  const auto before = decode->pools.snapshot();
  ASSERT_TRUE(sender.send(std::span(source).first(2), {}, &gate).is_ok());
  net.loop.settle();
  EXPECT_EQ(sender.poll(), KvStatus::kWaitingForInput);
  EXPECT_EQ(decode->pools.snapshot(), before);
  ASSERT_TRUE(sender.send(std::span(source).subspan(2, 1)).is_ok());
  ASSERT_TRUE(sender.send(std::span(source).subspan(3), {{5}}, &last).is_ok());
  net.loop.settle();
  EXPECT_EQ(sender.poll(), KvStatus::kTransferring);
  EXPECT_EQ(sender.metrics().bytes, 4 * Pools::kPageBytes);
  last.open();
  net.loop.settle();
  EXPECT_EQ(receiver.poll(), KvStatus::kTransferring);
  gate.open();
  gate.open();
  EXPECT_TRUE(gate.is_open());
  net.loop.settle();
  EXPECT_EQ(receiver.poll(), KvStatus::kSuccess) << why(receiver.failure());
  expect_landed();
  expect_clean();
}

TEST_F(Room, AGateThatOpensAfterTheEndTouchesNothing) {
  KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
  announce(receiver);
  auto sender = std::make_unique<KvSender>(*prefill->manager, kRoom);
  KvGate gate;
  ASSERT_TRUE(sender->init(5, kSourceRow).is_ok());
  ASSERT_TRUE(sender->send(source, {{5}}, &gate).is_ok());
  net.loop.settle();
  const auto before = decode->pools.snapshot();
  receiver.abort("client went away");
  net.loop.settle();
  gate.open();
  net.loop.settle();
  EXPECT_EQ(decode->pools.snapshot(), before);
  EXPECT_EQ(sender->poll(), KvStatus::kFailed);
  expect_clean();
  KvSender other(*prefill->manager, RoomId(4));
  KvGate never;
  ASSERT_TRUE(other.init(5, kSourceRow).is_ok());
  ASSERT_TRUE(other.send(source, {{5}}, &never).is_ok());
  KvReceiver waiting(*decode->manager, kPrefillAt, RoomId(4));
  announce(waiting);
  net.loop.advance(60s);
  EXPECT_THAT(other.failure().detail(), HasSubstr("source pages weren't ready"));
  sender.reset();
  prefill->manager->teardown();
  never.open();
  net.loop.settle();
}

TEST_F(Room, MetricsGiveEachStatusItsTime) {
  KvSender sender(*prefill->manager, kRoom);
  ASSERT_TRUE(sender.init(5, kSourceRow).is_ok());
  net.loop.advance(3s);
  KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
  announce(receiver);
  net.loop.advance(2s);
  net.hold_writes = true;
  ASSERT_TRUE(sender.send(std::span(source).first(2)).is_ok());
  ASSERT_TRUE(sender.send(std::span(source).subspan(2), {{5}}).is_ok());
  net.loop.settle();
  ASSERT_TRUE(net.land_next());
  net.loop.advance(700ms);
  while (net.land_next()) net.loop.settle();
  ASSERT_EQ(receiver.poll(), KvStatus::kSuccess);
  net.loop.advance(60s);
  const KvRoomMetrics out = sender.metrics();
  const KvRoomMetrics in = receiver.metrics();
  constexpr std::uint64_t kBytes = 20ULL * Pools::kPageBytes + 16 + 40 + 64;
  EXPECT_EQ(out.bytes, kBytes);
  EXPECT_EQ(in.bytes, kBytes);
  EXPECT_EQ(out.bootstrapping, 3s);
  EXPECT_EQ(out.waiting, 2s);
  EXPECT_EQ(out.transferring, 700ms);
  EXPECT_EQ(in.waiting, 2s);
  EXPECT_EQ(in.transferring, 700ms);
  EXPECT_EQ(out.retries, 0U);
  EXPECT_EQ(out.reason, "");
}

}  // namespace
}  // namespace kvmend::kv
