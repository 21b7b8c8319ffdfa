// Whole engines in two processes of this host, with the local transport between them: reads, which
// the initiator copies from what the other engine lends it.
#include <cstring>

#include "runtime/local_engines.h"

namespace kvmend {
namespace {

class LocalReads : public LocalEngines {
 protected:
  pid_t start_owner(bool pool = true) {
    return start_target([](const std::byte*) { return 0; }, options(), false, pool, true);
  }
  static Status read(Engine& engine, const std::string& session, std::span<const Slice> slices,
                     bool checksum = false) {
    TransferOptions how;
    how.checksum = checksum;
    return engine.transfer(session, Opcode::kRead, slices, std::move(how));
  }
  /// Reads until the bytes are copied from the other process's memory.
  bool becomes_copied(Engine& engine, std::byte* to) {
    const Slice slice{to, board_->address, kPage};
    return eventually([&] {
      const std::uint64_t before = engine.stats().local_bytes_received;
      return read(engine, board_->session, {&slice, 1}).is_ok() &&
             engine.stats().local_bytes_received > before;
    });
  }
  static std::size_t wrong_bytes(const std::byte* memory) {
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < kBytes; ++i) wrong += memory[i] != value_at(i + 1) ? 1 : 0;
    return wrong;
  }
  std::unique_ptr<Engine> start_reader(std::byte* memory, const EngineOptions& o = options()) {
    auto engine = std::move(*Engine::create(o));
    EXPECT_TRUE(engine->register_memory(memory, kBytes).is_ok());
    EXPECT_TRUE(engine->open_session(board_->session, 10s));
    return engine;
  }
};

TEST_F(LocalReads, AreCopiedFromAndToEveryKindOfMemory) {
  for (const bool theirs_is_pool : {true, false}) {
    for (const bool ours_is_pool : {true, false}) {
      board_->ready.store(0);
      board_->command.store(0);
      const pid_t target = start_owner(theirs_is_pool);
      Memory memory(ours_is_pool);
      auto engine = start_reader(memory.data());
      ASSERT_TRUE(becomes_copied(*engine, memory.data()));
      for (const bool checksum : {false, true}) {
        std::memset(memory.data(), 0, kBytes);
        const std::uint64_t before = engine->stats().local_bytes_received;
        const Status status =
            read(*engine, board_->session, scattered(memory.data(), board_->address), checksum);
        ASSERT_TRUE(status.is_ok()) << status.to_string();
        EXPECT_EQ(wrong_bytes(memory.data()), 0U) << theirs_is_pool << ours_is_pool << checksum;
        EXPECT_EQ(engine->stats().local_bytes_received - before, kBytes);
      }
      board_->command.store(1);
      EXPECT_EQ(result_of(target), 0);
    }
  }
}

TEST_F(LocalReads, OffMeansTheStream) {
  start_owner();
  Memory memory(true);
  EngineOptions off = options();
  off.local = LocalMode::kOff;
  auto engine = start_reader(memory.data(), off);
  for (int i = 0; i < 3; ++i)
    ASSERT_TRUE(read(*engine, board_->session, scattered(memory.data(), board_->address)).is_ok());
  EXPECT_EQ(wrong_bytes(memory.data()), 0U);
  EXPECT_EQ(engine->stats().local_bytes_received, 0U);
}

TEST_F(LocalReads, OfMemoryThatMayNotBeReadAreRefusedAndTheSessionGoesOn) {
  const pid_t target = fork_child([&]() -> int {
    Memory closed(true);
    Memory open(true);
    auto engine = Engine::create(options());
    if (!engine ||
        !(*engine)
             ->register_memory(closed.data(), kBytes, MemoryKind::kHost, Access::kRemoteWrite)
             .is_ok() ||
        !(*engine)->register_memory(open.data(), kBytes).is_ok())
      return 50;
    board_->other = reinterpret_cast<std::uintptr_t>(closed.data());
    publish(**engine, open.data());
    return eventually([&] { return board_->command.load() == 1; }) ? 0 : 51;
  });
  ASSERT_TRUE(eventually([&] { return board_->ready.load() == 1; }));
  Memory memory(true);
  auto engine = start_reader(memory.data());
  ASSERT_TRUE(becomes_copied(*engine, memory.data()));
  const Slice closed{memory.data(), board_->other, kPage};
  EXPECT_EQ(read(*engine, board_->session, {&closed, 1}).code(), Code::kPermissionDenied);
  EXPECT_TRUE(becomes_copied(*engine, memory.data()));
  board_->command.store(1);
  EXPECT_EQ(result_of(target), 0);
}

// Rule 1 and "a read counts only if the grantor confirms": once memory is deregistered, no read
// that succeeds has seen what its owner writes there afterwards.
TEST_F(LocalReads, NothingThatWasWrittenAfterDeregistrationIsReadWithSuccess) {
  for (const bool pool : {true, false}) {
    board_->ready.store(0);
    board_->command.store(0);
    const pid_t target = fork_child([&]() -> int {
      Memory memory(pool);
      Memory other(true);
      for (std::size_t i = 0; i < kBytes; ++i) memory.data()[i] = value_at(i + 1);
      auto engine = Engine::create(options());
      if (!engine || !(*engine)->register_memory(memory.data(), kBytes).is_ok() ||
          !(*engine)->register_memory(other.data(), kBytes).is_ok())
        return 40;
      publish(**engine, memory.data());
      for (int round = 1; round <= 10; ++round) {
        if (!eventually([&] { return board_->command.load() == round; })) return 41;
        std::this_thread::sleep_for(std::chrono::milliseconds(3 * round));
        if (!(*engine)->unregister_memory(memory.data()).is_ok()) return 42;
        std::memset(memory.data(), 0xEE, kBytes);
        board_->done.store(round);
        if (!eventually([&] { return board_->command.load() == -round; })) return 43;
        for (std::size_t i = 0; i < kBytes; ++i) memory.data()[i] = value_at(i + 1);
        if (!(*engine)->register_memory(memory.data(), kBytes).is_ok()) return 44;
        board_->ready.store(round + 1);
      }
      return 0;
    });
    ASSERT_TRUE(eventually([&] { return board_->ready.load() == 1; }));
    Memory memory(true);
    auto engine = start_reader(memory.data());
    const auto slices = scattered(memory.data(), board_->address);
    std::size_t succeeded = 0;
    std::size_t refused = 0;
    for (int round = 1; round <= 10; ++round) {
      ASSERT_TRUE(eventually([&] { return board_->ready.load() == round; }));
      ASSERT_TRUE(becomes_copied(*engine, memory.data()));
      board_->command.store(round);
      while (board_->done.load() != round || refused < static_cast<std::size_t>(round)) {
        std::memset(memory.data(), 0, kBytes);
        const Status status = read(*engine, board_->session, slices);
        if (status.is_ok()) {
          ++succeeded;
          ASSERT_EQ(wrong_bytes(memory.data()), 0U) << "round " << round;
        } else {
          ++refused;
          ASSERT_EQ(status.origin(), Origin::kCaller) << status.to_string();
        }
      }
      board_->command.store(-round);
      refused = static_cast<std::size_t>(round);
    }
    EXPECT_EQ(result_of(target), 0) << (pool ? "pool" : "foreign");
    EXPECT_GT(succeeded, 0U);
  }
}

// What the caller does with its memory after a read has ended stays as it is.
TEST_F(LocalReads, NothingIsWrittenAfterACancelledReadHasEnded) {
  start_owner();
  for (const bool pool : {true, false}) {
    Memory memory(pool);
    auto engine = start_reader(memory.data());
    ASSERT_TRUE(becomes_copied(*engine, memory.data()));
    const auto slices = scattered(memory.data(), board_->address);
    for (int round = 0; round < 20; ++round) {
      auto handle = engine->submit(board_->session, Opcode::kRead, slices);
      ASSERT_TRUE(handle);
      std::this_thread::sleep_for(std::chrono::microseconds(round * 150));
      (*handle)->cancel();
      ASSERT_TRUE((*handle)->wait(10s));
      std::memset(memory.data(), 0xEE, kBytes);
      std::this_thread::sleep_for(2ms);
      ASSERT_EQ(std::ranges::count(std::span(memory.data(), kBytes), std::byte{0xEE}), kBytes);
    }
    ASSERT_TRUE(becomes_copied(*engine, memory.data()));
  }
}

TEST_F(LocalReads, FromAProcessThatIsKilledEndWithAnError) {
  const pid_t target = start_owner();
  Memory memory(true);
  EngineOptions o = options();
  o.recovery.policy = FailedSessionPolicy::kFailFast;
  auto engine = start_reader(memory.data(), o);
  ASSERT_TRUE(becomes_copied(*engine, memory.data()));
  const auto slices = scattered(memory.data(), board_->address);
  std::thread killer([&] {
    std::this_thread::sleep_for(5ms);
    ::kill(target, SIGKILL);
  });
  Status status;
  while (status.is_ok()) {
    TransferOptions how;
    how.deadline = 2s;
    status = engine->transfer(board_->session, Opcode::kRead, slices, std::move(how));
  }
  killer.join();
  EXPECT_FALSE(status.is_ok());
}

// Its memory is free again: what it had borrowed is closed with its lanes.
TEST_F(LocalReads, AReaderThatIsKilledInMidCopyHarmsNobody) {
  for (const bool pool : {true, false}) {
    Memory memory(pool);
    board_->ready.store(0);
    const pid_t reader = fork_child([&]() -> int {
      if (!eventually([&] { return board_->ready.load() == 1; })) return 70;
      Memory own(true);
      auto mine = Engine::create(options());
      if (!mine || !(*mine)->register_memory(own.data(), kBytes).is_ok()) return 71;
      if (!(*mine)->open_session(board_->session, 10s)) return 72;
      if (!becomes_copied(**mine, own.data())) return 73;
      board_->ready.store(2);
      const auto slices = scattered(own.data(), board_->address);
      while (true)
        if (!read(**mine, board_->session, slices).is_ok()) return 74;
    });
    auto engine = std::move(*Engine::create(options()));
    ASSERT_TRUE(engine->register_memory(memory.data(), kBytes).is_ok());
    publish(*engine, memory.data());
    ASSERT_TRUE(eventually([&] { return board_->ready.load() == 2; }));
    ASSERT_TRUE(eventually([&] { return engine->stats().local_bytes_sent > 4 * kBytes; }));
    ::kill(reader, SIGKILL);
    EXPECT_TRUE(eventually([&] { return engine->stats().inbound_lanes == 0; }));
    EXPECT_EQ(result_of(reader), 1000 + SIGKILL);
    EXPECT_TRUE(engine->unregister_memory(memory.data()).is_ok());
  }
}

// An owner that forbids reading its memory lends pools only; plain memory comes by the stream.
TEST_F(LocalReads, WhatMayNotBeReadComesByTheStream) {
  const bool root = ::geteuid() == 0;
  const pid_t target = fork_child([&]() -> int {
    if (root && !become_nobody()) return 30;
    ::prctl(PR_SET_DUMPABLE, 0);
    Memory plain(false);
    for (std::size_t i = 0; i < kBytes; ++i) plain.data()[i] = value_at(i + 1);
    auto engine = Engine::create(options());
    if (!engine || !(*engine)->register_memory(plain.data(), kBytes).is_ok()) return 31;
    publish(**engine, plain.data());
    return eventually([&] { return board_->command.load() == 1; }) ? 0 : 32;
  });
  const pid_t reader = fork_child([&]() -> int {
    if (root && !become_nobody()) return 20;
    if (!eventually([&] { return board_->ready.load() == 1; })) return 21;
    Memory own(true);
    auto engine = Engine::create(options());
    if (!engine || !(*engine)->register_memory(own.data(), kBytes).is_ok()) return 22;
    if (!(*engine)->open_session(board_->session, 10s)) return 23;
    const auto slices = scattered(own.data(), board_->address);
    for (int i = 0; i < 5; ++i)
      if (!read(**engine, board_->session, slices).is_ok()) return 24;
    if (wrong_bytes(own.data()) != 0) return 25;
    return (*engine)->stats().local_bytes_received == 0 ? 0 : 26;
  });
  EXPECT_EQ(result_of(reader), 0);
  board_->command.store(1);
  EXPECT_EQ(result_of(target), 0);
}

}  // namespace
}  // namespace kvmend
