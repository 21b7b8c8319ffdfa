// The manager over real engines, sockets and threads on loopback.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "base/check.h"
#include "engine/facade.h"
#include "env/posix/network.h"
#include "kv/fake_cluster.h"
#include "transport/tcp/tcp_transport.h"

namespace kvmend::kv {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

constexpr auto kLong = 30s;  // for what takes milliseconds

/// As runtime/ builds an engine.
std::unique_ptr<Engine> start_engine(std::uint16_t port = 0) {
  struct World {
    std::unique_ptr<env::posix::PosixEnv> env;
    std::thread thread;
  };
  auto world = std::make_shared<World>();
  world->env = *env::posix::PosixEnv::create();
  auto core = std::make_unique<engine::EngineCore>(world->env->env(), EngineOptions{.port = port},
                                                   transport::tcp::make_tcp_transport, nullptr);
  const Status started = core->start();
  KVM_CHECK(started.is_ok(), started.detail());
  world->thread = std::thread([loop = &world->env->loop()] { loop->run(); });
  return std::make_unique<engine::EngineFacade>(std::move(core), world, [w = world.get()] {
    w->env->loop().stop();
    if (w->thread.joinable()) w->thread.join();
    w->env->loop().bind_to_this_thread();
  });
}

struct Side {
  Side(KvRole role, int seed, std::uint16_t port = 0)
      : pools(seed), engine(start_engine(port)), manager(open(role)) {}
  std::unique_ptr<KvManager> open(KvRole role) {
    auto made = KvManager::create(*engine, role, pools.layout);
    KVM_CHECK(made.has_value());
    return std::move(*made);
  }
  Pools pools;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<KvManager> manager;
};

/// Moves `page` and one row of aux and state.
void expect_moves(Side& prefill, Side& decode, RoomId room, std::uint32_t page) {
  const std::vector<std::uint32_t> from{page};
  const std::vector<std::uint32_t> to{Pools::kPages - 1 - page};
  const std::uint32_t row = page % Pools::kRows;
  KvReceiver receiver(*decode.manager, prefill.engine->session_id(), room);
  receiver.init();
  ASSERT_TRUE(receiver.send_metadata(to, row, {{row}}).is_ok());
  KvSender sender(*prefill.manager, room);
  ASSERT_TRUE(sender.init(1, row).is_ok());
  ASSERT_TRUE(sender.send(from, {{row}}).is_ok());
  ASSERT_EQ(receiver.wait(kLong), KvStatus::kSuccess) << receiver.failure().to_string();
  ASSERT_EQ(sender.wait(kLong), KvStatus::kSuccess) << sender.failure().to_string();
  for (std::size_t buffer = 0; buffer < 4; ++buffer) {
    const Bytes here = prefill.pools.page(0, buffer, from[0]);
    const Bytes there = decode.pools.page(0, buffer, to[0]);
    ASSERT_EQ(std::memcmp(here.data(), there.data(), here.size()), 0);
  }
}

TEST(Loopback, ManyRoomsFromManyThreads) {
  Side prefill(KvRole::kPrefill, 1);
  Side decode(KvRole::kDecode, 2);
  std::vector<std::jthread> threads;
  for (std::uint32_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (std::uint32_t i = 0; i < 50; ++i)
        expect_moves(prefill, decode, RoomId(t * 1'000ULL + i), t + 4 * (i % 8));
    });
  threads.clear();
  EXPECT_EQ(decode.manager->stats().rooms_succeeded, 200U);
  EXPECT_EQ(decode.engine->stats().grants, 0U);
  EXPECT_EQ(prefill.manager->stats().rooms, 0U);
}

TEST(Loopback, I7_AReasonReachesTheOtherSide) {
  Side prefill(KvRole::kPrefill, 1);
  Side decode(KvRole::kDecode, 2);
  const std::vector<std::uint32_t> pages{1, 2, 3};
  KvReceiver receiver(*decode.manager, prefill.engine->session_id(), RoomId(1));
  receiver.init();
  ASSERT_TRUE(receiver.send_metadata(pages).is_ok());
  KvSender sender(*prefill.manager, RoomId(1));
  ASSERT_TRUE(sender.init(3).is_ok());
  ASSERT_TRUE(sender.send(std::span(pages).first(1)).is_ok());
  ASSERT_EQ(receiver.wait_for(KvStatus::kTransferring, kLong), KvStatus::kTransferring);
  sender.abort("out of memory on rank 3");
  EXPECT_EQ(receiver.wait(kLong), KvStatus::kFailed);
  EXPECT_THAT(receiver.failure().detail(), HasSubstr("out of memory on rank 3"));
  EXPECT_EQ(decode.engine->stats().grants, 0U);

  KvReceiver other(*decode.manager, prefill.engine->session_id(), RoomId(2));
  other.init();
  ASSERT_TRUE(other.send_metadata(pages).is_ok());
  KvSender other_sender(*prefill.manager, RoomId(2));
  ASSERT_EQ(other_sender.wait_for(KvStatus::kWaitingForInput, kLong), KvStatus::kWaitingForInput);
  other.abort("client went away");
  EXPECT_EQ(other_sender.wait(kLong), KvStatus::kFailed);
  EXPECT_THAT(other_sender.failure().detail(), HasSubstr("client went away"));
}

TEST(Loopback, R3_DecodeIsReplacedOnTheSamePort) {
  Side prefill(KvRole::kPrefill, 1);
  auto decode = std::make_unique<Side>(KvRole::kDecode, 2);
  const auto port = parse_address(decode->engine->session_id())->port;
  expect_moves(prefill, *decode, RoomId(1), 3);
  const std::vector<std::uint32_t> pages{1, 2, 3};
  auto receiver =
      std::make_unique<KvReceiver>(*decode->manager, prefill.engine->session_id(), RoomId(2));
  receiver->init();
  ASSERT_TRUE(receiver->send_metadata(pages).is_ok());
  KvSender sender(*prefill.manager, RoomId(2));
  ASSERT_EQ(sender.wait_for(KvStatus::kWaitingForInput, kLong), KvStatus::kWaitingForInput);
  decode->engine->shutdown(0s);  // its rooms are told
  decode.reset();
  decode = std::make_unique<Side>(KvRole::kDecode, 5, port);
  expect_moves(prefill, *decode, RoomId(3), 4);
  EXPECT_EQ(sender.wait(kLong), KvStatus::kFailed);
  EXPECT_EQ(sender.failure().code(), Code::kShuttingDown) << sender.failure().to_string();
  EXPECT_THAT(sender.failure().detail(), HasSubstr(decode->engine->session_id()));
}

TEST(Loopback, RolesSwitchOnTheSameEngines) {
  Side a(KvRole::kPrefill, 1);
  Side b(KvRole::kDecode, 2);
  for (std::uint32_t round = 0; round < 10; ++round) {
    Side& prefill = round % 2 == 0 ? a : b;
    Side& decode = round % 2 == 0 ? b : a;
    expect_moves(prefill, decode, RoomId(round), round);
    a.manager->teardown();
    b.manager->teardown();
    EXPECT_EQ(a.engine->stats().regions, b.engine->stats().regions);
    a.manager = a.open(round % 2 == 0 ? KvRole::kDecode : KvRole::kPrefill);
    b.manager = b.open(round % 2 == 0 ? KvRole::kPrefill : KvRole::kDecode);
  }
}

// Role switches under load: rooms are under way when both managers are torn down. Each of them
// ends, a success has its bytes, and nothing of the old role lands afterwards.
TEST(Loopback, RolesSwitchAHundredTimesUnderLoad) {
  Side a(KvRole::kPrefill, 1);
  Side b(KvRole::kDecode, 2);
  std::uint64_t number = 0;
  std::uint64_t succeeded = 0;
  for (std::uint32_t round = 0; round < 100; ++round) {
    Side& prefill = round % 2 == 0 ? a : b;
    Side& decode = round % 2 == 0 ? b : a;
    std::vector<std::unique_ptr<KvReceiver>> receivers;
    std::vector<std::unique_ptr<KvSender>> senders;
    for (std::uint32_t page = 0; page < Pools::kPages; ++page) {
      const RoomId room(++number);
      const std::vector<std::uint32_t> pages{page};
      receivers.push_back(
          std::make_unique<KvReceiver>(*decode.manager, prefill.engine->session_id(), room));
      receivers.back()->init();
      ASSERT_TRUE(receivers.back()->send_metadata(pages).is_ok());
      senders.push_back(std::make_unique<KvSender>(*prefill.manager, room));
      ASSERT_TRUE(senders.back()->init(1).is_ok());
      ASSERT_TRUE(senders.back()->send(pages).is_ok());
    }
    receivers[round % Pools::kPages]->wait(kLong);  // some have moved, some have not
    a.manager->teardown();
    b.manager->teardown();
    const auto left = decode.pools.snapshot();
    for (std::uint32_t page = 0; page < Pools::kPages; ++page) {
      ASSERT_TRUE(is_terminal(senders[page]->poll()));
      ASSERT_TRUE(is_terminal(receivers[page]->poll()));
      if (receivers[page]->poll() != KvStatus::kSuccess) continue;
      ++succeeded;
      for (std::size_t buffer = 0; buffer < 4; ++buffer)
        ASSERT_EQ(std::memcmp(prefill.pools.page(0, buffer, page).data(),
                              decode.pools.page(0, buffer, page).data(), Pools::kPageBytes),
                  0);
    }
    EXPECT_EQ(a.engine->stats().regions, b.engine->stats().regions);
    EXPECT_EQ(decode.engine->stats().grants, 0U);
    a.manager = a.open(round % 2 == 0 ? KvRole::kDecode : KvRole::kPrefill);
    b.manager = b.open(round % 2 == 0 ? KvRole::kPrefill : KvRole::kDecode);
    // The next round's rooms are what writes there first.
    ASSERT_EQ(decode.pools.snapshot(), left);
  }
  EXPECT_GE(succeeded, 100U);
}

// B6: rooms end with the engine, whoever waits for them, and none begins afterwards.
TEST(Loopback, B6_AnEngineThatShutsDownEndsItsRooms) {
  Side prefill(KvRole::kPrefill, 1);
  KvSender sender(*prefill.manager, RoomId(1));
  std::thread waiter([&] { EXPECT_EQ(sender.wait(kLong), KvStatus::kFailed); });
  std::thread([&] { prefill.engine->shutdown(0s); }).join();
  waiter.join();
  EXPECT_EQ(sender.failure().code(), Code::kShuttingDown) << sender.failure().to_string();
  KvSender late(*prefill.manager, RoomId(2));
  EXPECT_EQ(late.wait(kLong), KvStatus::kFailed);
  late.abort("not wanted");
  EXPECT_FALSE(KvManager::create(*prefill.engine, KvRole::kDecode, prefill.pools.layout));
  prefill.manager.reset();  // in another thread than the one that shut the engine down
}

}  // namespace
}  // namespace kvmend::kv
