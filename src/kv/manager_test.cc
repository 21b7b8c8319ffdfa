// Managers come and go; handles stay.
#include <gmock/gmock.h>

#include "kv/fake_cluster.h"

namespace kvmend::kv {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

class Manager : public Cluster {};

TEST_F(Manager, TeardownEndsRoomsTellsPeersAndTakesItsRegionsBack) {
  net.hold_writes = true;
  KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
  announce(receiver);
  KvSender sender(*prefill->manager, kRoom);
  KvReceiver unclaimed(*decode->manager, kPrefillAt, RoomId(3));
  announce(unclaimed);
  send_all(sender);
  net.loop.settle();
  EXPECT_EQ(prefill->engine.regions.size(), 7U);
  prefill->manager->teardown();
  EXPECT_EQ(sender.failure().code(), Code::kShuttingDown);
  EXPECT_EQ(prefill->engine.regions.size(), 0U);
  EXPECT_EQ(prefill->engine.running.size(), 0U);
  EXPECT_EQ(prefill->engine.observer, nullptr);
  net.loop.settle();
  EXPECT_EQ(receiver.failure().code(), Code::kShuttingDown);
  EXPECT_EQ(unclaimed.failure().code(), Code::kShuttingDown);
  EXPECT_TRUE(sender.send(source).code() == Code::kShuttingDown);
  prefill->manager->teardown();
  EXPECT_EQ(net.loop.timers(), 0U);
}

TEST_F(Manager, HandlesOutliveTheirManager) {
  KvSender sender(*prefill->manager, kRoom);
  KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
  net.loop.settle();
  KvSender unposted(*prefill->manager, RoomId(2));
  prefill->manager.reset();
  decode->manager.reset();
  net.loop.settle();
  EXPECT_EQ(sender.failure().code(), Code::kShuttingDown);
  EXPECT_EQ(receiver.failure().code(), Code::kShuttingDown);
  EXPECT_EQ(unposted.failure().code(), Code::kShuttingDown);
  sender.abort("late");
  receiver.init();
  EXPECT_EQ(receiver.send_metadata(target).code(), Code::kShuttingDown);
  EXPECT_EQ(sender.metrics().bytes, 0U);
  EXPECT_EQ(sender.wait(1s), KvStatus::kFailed);
}

// Role switch: the engines stay, the managers change sides; peers register again by themselves.
TEST_F(Manager, RolesSwitchAHundredTimes) {
  bool swapped = false;
  for (int round = 0; round < 100; ++round) {
    Node& writer = swapped ? *decode : *prefill;
    Node& reader = swapped ? *prefill : *decode;
    const std::string writer_at = swapped ? kDecodeAt : kPrefillAt;
    KvReceiver receiver(*reader.manager, writer_at, kRoom);
    announce(receiver);
    KvSender sender(*writer.manager, kRoom);
    send_all(sender);
    net.loop.settle();
    ASSERT_EQ(receiver.poll(), KvStatus::kSuccess) << round << why(receiver.failure());
    ASSERT_EQ(sender.poll(), KvStatus::kSuccess) << round;
    KvReceiver pending(*reader.manager, writer_at, RoomId(4));
    announce(pending);
    KvSender pending_sender(*writer.manager, RoomId(4));
    for (int i = 0; i < round % 7; ++i) net.loop.step();
    prefill->manager->teardown();
    decode->manager->teardown();
    net.loop.settle();
    EXPECT_EQ(pending.failure().code(), Code::kShuttingDown) << round;
    swapped = !swapped;
    prefill->manager = prefill->open(net, swapped ? KvRole::kDecode : KvRole::kPrefill, options);
    decode->manager = decode->open(net, swapped ? KvRole::kPrefill : KvRole::kDecode, options);
    net.loop.settle();
    expect_clean();
  }
}

TEST_F(Manager, PrefillReplacesItsManagerAndDecodeRegistersAgain) {
  KvReceiver first(*decode->manager, kPrefillAt, RoomId(1));
  announce(first);
  net.loop.settle();
  prefill->manager->teardown();
  net.loop.settle();
  EXPECT_EQ(first.failure().code(), Code::kShuttingDown);
  KvReceiver early(*decode->manager, kPrefillAt, RoomId(2));  // nobody is there yet
  announce(early);
  net.loop.advance(3s);
  EXPECT_FALSE(is_terminal(early.poll()));
  prefill->manager = prefill->open(net, KvRole::kPrefill, options);
  KvSender sender(*prefill->manager, RoomId(2));
  send_all(sender);
  net.loop.advance(10s);
  EXPECT_EQ(early.poll(), KvStatus::kSuccess) << why(early.failure());
}

// The notice that the manager went is lost: the metadata itself finds out.
TEST_F(Manager, AForgottenRegistrationIsRenewedByTheNextRoom) {
  KvReceiver first(*decode->manager, kPrefillAt, RoomId(1));
  announce(first);
  net.loop.settle();
  first.clear();
  net.loop.settle();
  net.lost = [](const std::string& to, const wire::KvMessage&) { return to == kDecodeAt; };
  prefill->manager->teardown();
  net.loop.settle();
  net.lost = nullptr;
  prefill->manager = prefill->open(net, KvRole::kPrefill, options);
  KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
  announce(receiver);
  KvSender sender(*prefill->manager, kRoom);
  send_all(sender);
  net.loop.settle();
  EXPECT_EQ(receiver.poll(), KvStatus::kSuccess) << why(receiver.failure());
}

TEST_F(Manager, UsesRegionsThatAreRegisteredAlready) {
  FakeEngine& engine = net.start("10.0.0.9:1");
  std::vector<std::byte> pool(4'096);
  ASSERT_TRUE(engine.regions.add(pool.data(), pool.size(), MemoryKind::kHost, Access::kNone));
  const KvLayout layout{
      .page_tokens = 1,
      .components = {{.items = 8, .buffers = {{pool.data(), 128}, {pool.data() + 1'024, 128}}}}};
  auto link = Link::open(net.port(engine), KvRole::kDecode, layout, {});
  ASSERT_TRUE(link.has_value());
  KvManager manager(*link);
  EXPECT_EQ(engine.regions.size(), 1U);
  manager.teardown();
  EXPECT_EQ(engine.regions.size(), 1U);
}

TEST_F(Manager, RefusesBadLayoutsAndOptionsAndLeavesNothingBehind) {
  FakeEngine& engine = net.start("10.0.0.9:1");
  KvLayout layout = prefill->pools.layout;
  layout.components[0].buffers[3] = layout.components[0].buffers[2];
  layout.components[0].buffers[3].item_len += 1;  // overlaps, but isn't contained
  auto overlapping = Link::open(net.port(engine), KvRole::kDecode, layout, {});
  ASSERT_FALSE(overlapping.has_value());
  EXPECT_EQ(overlapping.error().code(), Code::kAlreadyExists);
  EXPECT_EQ(engine.regions.size(), 0U);
  auto late =
      Link::open(net.port(engine), KvRole::kDecode, prefill->pools.layout, {.room_deadline = 200h});
  ASSERT_FALSE(late.has_value());
  EXPECT_THAT(late.error().detail(), HasSubstr("room_deadline 720000000 ms"));
}

}  // namespace
}  // namespace kvmend::kv
