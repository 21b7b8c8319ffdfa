// Case L2 between real processes: decode is killed while prefill holds a hundred rooms' pages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "kvmend/engine.h"
#include "kvmend/kv.h"

namespace kvmend {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

constexpr std::uint32_t kRooms = 100;
constexpr std::uint64_t kItem = 4096;

struct Board {
  std::atomic<int> stage{0};  // 1: prefill listens
  char prefill[64] = {};
};

struct Side {
  explicit Side(KvRole role) : memory(kRooms * kItem) {
    auto made = Engine::create();
    if (!made) std::abort();
    engine = std::move(*made);
    KvComponent kv{.pool = KvPool::kKv, .dtype = "uint8", .items = kRooms};
    kv.buffers = {{memory.data(), kItem}};
    const KvLayout layout{.page_tokens = 16, .kv_heads = 1, .head_dim = 256, .components = {kv}};
    auto opened = KvManager::create(*engine, role, layout);
    if (!opened) std::abort();
    manager = std::move(*opened);
  }
  std::vector<std::byte> memory;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<KvManager> manager;
};

void wait_for(const Board& board, int stage) {
  while (board.stage.load() < stage) std::this_thread::sleep_for(1ms);
}

[[noreturn]] void decode(Board& board) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  wait_for(board, 1);
  Side side(KvRole::kDecode);
  std::vector<std::unique_ptr<KvReceiver>> receivers;
  for (std::uint32_t i = 0; i < kRooms; ++i) {
    receivers.push_back(std::make_unique<KvReceiver>(*side.manager, board.prefill, RoomId(i + 1)));
    const std::vector<std::uint32_t> pages{i};
    if (!receivers.back()->send_metadata(pages).is_ok()) ::_exit(1);
  }
  while (true) ::pause();
}

TEST(KvDeath, L2_AKilledDecodeFreesPrefillsPagesLongBeforeTheDeadline) {
  void* shared =
      ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  Board& board = *new (shared) Board;
  const pid_t child = ::fork();
  if (child == 0) decode(board);
  {
    Side prefill(KvRole::kPrefill);
    std::snprintf(board.prefill, sizeof board.prefill, "%s", prefill.engine->session_id().c_str());
    board.stage.store(1);
    std::vector<std::unique_ptr<KvSender>> senders;
    for (std::uint32_t i = 0; i < kRooms; ++i) {
      senders.push_back(std::make_unique<KvSender>(*prefill.manager, RoomId(i + 1)));
      ASSERT_EQ(senders.back()->wait_for(KvStatus::kWaitingForInput, 30s),
                KvStatus::kWaitingForInput);
    }
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    for (const auto& sender : senders) {
      ASSERT_EQ(sender->wait(30s), KvStatus::kFailed);  // the room's deadline is 60 s
      EXPECT_EQ(sender->failure().code(), Code::kPeerRestarted) << sender->failure().to_string();
      EXPECT_THAT(sender->failure().detail(), HasSubstr("has died"));
    }
    EXPECT_EQ(prefill.manager->stats().rooms, 0U);
  }
  ::munmap(shared, sizeof(Board));
}

}  // namespace
}  // namespace kvmend
