// Whole engines in two processes of this host, with the local transport between them: writes.
#include <cstring>

#include "runtime/local_engines.h"

namespace kvmend {
namespace {

class LocalWrites : public LocalEngines {
 protected:
  void write_everything(bool pool, const std::string& transport, const EngineOptions& o,
                        bool target_as_nobody = false) {
    const pid_t target = start_target(
        [](const std::byte* memory) {
          for (std::size_t i = 0; i < kBytes; ++i)
            if (memory[i] != value_at(i)) return 1;
          return 0;
        },
        options(), target_as_nobody);
    Memory memory(pool);
    for (std::size_t i = 0; i < kBytes; ++i) memory.data()[i] = value_at(i);
    auto engine = Engine::create(o);
    ASSERT_TRUE(engine);
    ASSERT_TRUE((*engine)->register_memory(memory.data(), kBytes).is_ok());
    ASSERT_TRUE((*engine)->open_session(board_->session, 10s));
    ASSERT_TRUE(becomes(**engine, transport)) << transport_of(**engine);
    for (const bool checksum : {false, true}) {
      TransferOptions how;
      how.checksum = checksum;
      const Status status =
          (*engine)->transfer(board_->session, Opcode::kWrite,
                              scattered(memory.data(), board_->address), std::move(how));
      EXPECT_TRUE(status.is_ok()) << status.to_string();
    }
    EXPECT_EQ(transport_of(**engine), transport);
    board_->command.store(1);
    EXPECT_EQ(result_of(target), 0);
  }
};

TEST_F(LocalWrites, PoolsAreCopiedFrom) {
  write_everything(true, "local", options());
}

TEST_F(LocalWrites, ForeignMemoryIsReadFrom) {
  write_everything(false, "local", options());
}

TEST_F(LocalWrites, OffMeansTcp) {
  EngineOptions off = options();
  off.local = LocalMode::kOff;
  write_everything(true, "tcp", off);
}

TEST_F(LocalWrites, AnotherUserIsServedByTcp) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to be two users";
  write_everything(true, "tcp", options(), true);
}

// Small writes, one after the other and with pauses: frames go through shared memory while both
// loops are awake and by the stream while one sleeps, and every write is in place when it is over.
TEST_F(LocalWrites, SmallWritesArriveWhetherTheLoopsSleepOrNot) {
  for (const auto spin : {0us, 50us, 5'000us}) {
    board_->ready.store(0);
    board_->command.store(0);
    EngineOptions o = options();
    o.spin = spin;
    const pid_t target = start_target([](std::byte*) { return 0; }, o);
    Memory memory(true);
    auto engine = Engine::create(o);
    ASSERT_TRUE(engine);
    ASSERT_TRUE((*engine)->register_memory(memory.data(), kBytes).is_ok());
    ASSERT_TRUE((*engine)->open_session(board_->session, 10s));
    ASSERT_TRUE(becomes(**engine, "local"));
    std::mt19937 random(1);
    for (int i = 0; i < 2'000; ++i) {
      const std::size_t to = random() % (kBytes / 4 - 8'192);
      const std::size_t bytes = 1 + random() % 8'192;
      const std::size_t back = kBytes / 2;
      for (std::size_t b = 0; b < bytes; ++b) memory.data()[b] = value_at(b + to + i);
      const Slice write{memory.data(), board_->address + to, bytes};
      const Slice read{memory.data() + back, board_->address + to, bytes};
      ASSERT_TRUE(
          (*engine)->transfer(board_->session, Opcode::kWrite, std::span(&write, 1)).is_ok());
      ASSERT_TRUE((*engine)->transfer(board_->session, Opcode::kRead, std::span(&read, 1)).is_ok());
      ASSERT_EQ(std::memcmp(memory.data(), memory.data() + back, bytes), 0) << i;
      if (i % 100 == 0) std::this_thread::sleep_for(1ms);
    }
    board_->command.store(1);
    EXPECT_EQ(result_of(target), 0);
  }
}

// A sender that forbids reading its memory (as yama, seccomp profiles and setuid programs do):
// plain memory goes by tcp, pools still don't.
TEST_F(LocalWrites, WhatMayNotBeReadGoesByTcpAndPoolsDont) {
  const bool root = ::geteuid() == 0;
  start_target([](const std::byte*) { return 0; }, options(), root);
  const pid_t sender = fork_child([&]() -> int {
    if (root && !become_nobody()) return 80;
    ::prctl(PR_SET_DUMPABLE, 0);
    Memory plain(false);
    auto engine = Engine::create(options());
    if (!engine || !(*engine)->register_memory(plain.data(), kBytes).is_ok()) return 81;
    if (!(*engine)->open_session(board_->session, 10s)) return 82;
    const auto write = [&](std::byte* from) {
      return (*engine)
          ->transfer(board_->session, Opcode::kWrite, scattered(from, board_->address))
          .is_ok();
    };
    if (!write(plain.data()) || transport_of(**engine) != "tcp") return 83;
    Memory pool(true);
    if (!(*engine)->register_memory(pool.data(), kBytes).is_ok()) return 84;
    if (!becomes(**engine, "local")) return 85;
    if (!write(pool.data()) || !write(plain.data())) return 86;
    return 0;
  });
  EXPECT_EQ(result_of(sender), 0);
}

TEST_F(LocalWrites, UnmappedSourceMemoryIsAnErrorOfTheTransferOnly) {
  start_target([](const std::byte*) { return 0; });
  void* gone = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  Memory good(true);
  auto engine = Engine::create(options());
  ASSERT_TRUE(engine);
  ASSERT_TRUE((*engine)->register_memory(gone, kBytes).is_ok());
  ASSERT_TRUE((*engine)->register_memory(good.data(), kBytes).is_ok());
  ASSERT_TRUE((*engine)->open_session(board_->session, 10s));
  ASSERT_TRUE(becomes(**engine, "local"));
  ::munmap(gone, kBytes);
  const Status status = (*engine)->transfer(
      board_->session, Opcode::kWrite, scattered(static_cast<std::byte*>(gone), board_->address));
  EXPECT_EQ(status.code(), Code::kNotRegistered) << status.to_string();
  EXPECT_EQ(status.origin(), Origin::kCaller);
  EXPECT_TRUE(
      (*engine)
          ->transfer(board_->session, Opcode::kWrite, scattered(good.data(), board_->address))
          .is_ok());
}

// The receiver's caller unmaps registered memory without a word: its process lives on, the writer
// gets an error, other memory goes on being written.
TEST_F(LocalWrites, UnmappedDestinationMemoryIsAnErrorOfTheTransferOnly) {
  for (const bool pool : {true, false}) {
    for (const LocalMode local : {LocalMode::kAuto, LocalMode::kOff}) {
      for (const bool checksum : {false, true}) {
        EngineOptions o = options();
        o.local = local;
        board_->ready.store(0);
        const pid_t sender = fork_child([&]() -> int {
          if (!eventually([&] { return board_->ready.load() == 1; })) return 60;
          Memory own(true);
          auto engine = Engine::create(o);
          if (!engine || !(*engine)->register_memory(own.data(), kBytes).is_ok()) return 61;
          if (!(*engine)->open_session(board_->session, 10s)) return 62;
          if (!becomes(**engine, local == LocalMode::kAuto ? "local" : "tcp")) return 63;
          const auto write = [&](std::uint64_t to) {
            TransferOptions how;
            how.checksum = checksum;
            return (*engine)->transfer(board_->session, Opcode::kWrite, scattered(own.data(), to),
                                       std::move(how));
          };
          if (!write(board_->address).is_ok()) return 64;
          board_->ready.store(2);
          if (!eventually([&] { return board_->ready.load() == 3; })) return 65;
          if (write(board_->address).code() != Code::kNotRegistered) return 66;
          return write(board_->other).is_ok() ? 0 : 67;
        });
        std::byte* gone = nullptr;
        std::unique_ptr<MemoryPool> gone_pool;
        if (pool) {
          gone_pool = std::move(*MemoryPool::create(kBytes));
          gone = gone_pool->data();
        } else {
          gone = static_cast<std::byte*>(
              ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        }
        Memory good(true);
        auto receiver = std::move(*Engine::create(o));
        ASSERT_TRUE(receiver->register_memory(gone, kBytes).is_ok());
        ASSERT_TRUE(receiver->register_memory(good.data(), kBytes).is_ok());
        board_->other = reinterpret_cast<std::uintptr_t>(good.data());
        publish(*receiver, gone);
        EXPECT_TRUE(eventually([&] { return board_->ready.load() == 2; }));
        ::munmap(gone, kBytes);
        board_->ready.store(3);
        EXPECT_EQ(result_of(sender), 0) << (pool ? "pool " : "foreign ") << checksum
                                        << (local == LocalMode::kAuto ? " local" : " tcp");
        EXPECT_TRUE(receiver->unregister_memory(gone).is_ok());
      }
    }
  }
}

// Rule 7, seen from outside: what the sender writes after the cancelled transfer's end never
// arrives.
TEST_F(LocalWrites, NothingIsReadAfterACancelledTransferHasEnded) {
  for (const bool pool : {true, false}) {
    board_->ready.store(0);
    board_->command.store(0);
    const pid_t target = start_target([](const std::byte* memory) {
      return std::ranges::count(std::span(memory, kBytes), std::byte{0xEE}) == 0 ? 0 : 1;
    });
    Memory memory(pool);
    auto engine = Engine::create(options());
    ASSERT_TRUE(engine);
    ASSERT_TRUE((*engine)->register_memory(memory.data(), kBytes).is_ok());
    ASSERT_TRUE((*engine)->open_session(board_->session, 10s));
    ASSERT_TRUE(becomes(**engine, "local"));
    const auto slices = scattered(memory.data(), board_->address);
    for (int round = 0; round < 20; ++round) {
      std::memset(memory.data(), 1, kBytes);
      auto handle = (*engine)->submit(board_->session, Opcode::kWrite, slices);
      ASSERT_TRUE(handle);
      std::this_thread::sleep_for(std::chrono::microseconds(round * 150));
      (*handle)->cancel();
      ASSERT_TRUE((*handle)->wait(10s));
      std::memset(memory.data(), 0xEE, kBytes);
      std::this_thread::sleep_for(2ms);
    }
    board_->command.store(1);
    EXPECT_EQ(result_of(target), 0) << (pool ? "pool" : "foreign");
  }
}

TEST_F(LocalWrites, ATargetThatIsKilledEndsTheTransferWithAnError) {
  const pid_t target = start_target([](const std::byte*) { return 0; });
  Memory memory(true);
  EngineOptions o = options();
  o.recovery.policy = FailedSessionPolicy::kFailFast;
  auto engine = Engine::create(o);
  ASSERT_TRUE(engine);
  ASSERT_TRUE((*engine)->register_memory(memory.data(), kBytes).is_ok());
  ASSERT_TRUE((*engine)->open_session(board_->session, 10s));
  ASSERT_TRUE(becomes(**engine, "local"));
  TransferOptions how;
  how.deadline = 2s;
  const auto slices = scattered(memory.data(), board_->address);
  ::kill(target, SIGKILL);
  Status status;
  while (status.is_ok()) {
    TransferOptions again;
    again.deadline = 2s;
    status = (*engine)->transfer(board_->session, Opcode::kWrite, slices, std::move(again));
  }
  EXPECT_FALSE(status.is_ok());
  EXPECT_FALSE((*engine)->sessions().empty());
}

// The receiver copies from a process that is killed meanwhile: it goes on living, and lets the
// lanes go.
TEST_F(LocalWrites, ASenderThatIsKilledInMidCopyHarmsNobody) {
  for (const bool pool : {true, false}) {
    Memory memory(true);
    auto engine = std::unique_ptr<Engine>();
    board_->ready.store(0);
    const pid_t sender = fork_child([&]() -> int {
      if (!eventually([&] { return board_->ready.load() == 1; })) return 70;
      Memory own(pool);
      auto mine = Engine::create(options());
      if (!mine || !(*mine)->register_memory(own.data(), kBytes).is_ok()) return 71;
      if (!(*mine)->open_session(board_->session, 10s) || !becomes(**mine, "local")) return 72;
      board_->ready.store(2);
      const auto slices = scattered(own.data(), board_->address);
      while (true)
        if (!(*mine)->transfer(board_->session, Opcode::kWrite, slices).is_ok()) return 73;
    });
    engine = std::move(*Engine::create(options()));
    ASSERT_TRUE(engine->register_memory(memory.data(), kBytes).is_ok());
    publish(*engine, memory.data());
    ASSERT_TRUE(eventually([&] { return board_->ready.load() == 2; }));
    ASSERT_TRUE(eventually([&] { return engine->stats().bytes_received > 4 * kBytes; }));
    ::kill(sender, SIGKILL);
    EXPECT_TRUE(eventually([&] { return engine->stats().inbound_lanes == 0; }));
    EXPECT_EQ(result_of(sender), 1000 + SIGKILL);
    EXPECT_TRUE(engine->unregister_memory(memory.data()).is_ok());
  }
}

}  // namespace
}  // namespace kvmend
