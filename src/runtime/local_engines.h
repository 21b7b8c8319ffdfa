// Engines in two processes of this host: what the tests of the local transport share.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <functional>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kvmend/engine.h"
#include "kvmend/pool.h"

namespace kvmend {

using namespace std::chrono_literals;

inline constexpr std::size_t kBytes = 32U << 20U;
inline constexpr std::size_t kPage = 16'384;
inline constexpr uid_t kNobody = 65'534;

/// What the processes of one test tell each other.
struct Board {
  std::atomic<int> ready{0};
  std::atomic<int> command{0};
  std::atomic<int> done{0};
  std::uint64_t address = 0;
  std::uint64_t other = 0;
  char session[64] = {};
};

template <class Condition>
bool eventually(Condition condition) {
  const auto deadline = std::chrono::steady_clock::now() + 30s;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(1ms);
  }
  return true;
}

inline EngineOptions options() {
  EngineOptions o;
  o.recovery.connect_deadline = 10s;
  return o;
}

inline std::byte value_at(std::size_t i) {
  return static_cast<std::byte>(i * 31 + i / 509);
}

/// Memory of either kind.
class Memory {
 public:
  explicit Memory(bool pool) {
    if (pool) {
      pool_ = std::move(*MemoryPool::create(kBytes));
    } else {
      plain_.resize(kBytes);
    }
  }
  std::byte* data() { return pool_ ? pool_->data() : plain_.data(); }

 private:
  std::unique_ptr<MemoryPool> pool_;
  std::vector<std::byte> plain_;
};

class LocalEngines : public testing::Test {
 protected:
  LocalEngines() {
    void* page =
        ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    board_ = new (page) Board;
  }
  ~LocalEngines() override {
    for (const pid_t pid : children_) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
    ::munmap(board_, sizeof(Board));
  }

  pid_t fork_child(const std::function<int()>& body) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::_exit(body());
    }
    children_.push_back(pid);
    return pid;
  }
  int result_of(pid_t pid) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    std::erase(children_, pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }

  /// A process with registered memory (if `filled`, it holds value_at(i + 1)). On each command it
  /// runs `check` over its memory.
  pid_t start_target(const std::function<int(std::byte*)>& check, EngineOptions o = options(),
                     bool as_nobody = false, bool pool = true, bool filled = false) {
    const pid_t pid = fork_child([&]() -> int {
      if (as_nobody && !become_nobody()) return 90;
      Memory memory(pool);
      for (std::size_t i = 0; filled && i < kBytes; ++i) memory.data()[i] = value_at(i + 1);
      auto engine = Engine::create(o);
      if (!engine) return 91;
      if (!(*engine)->register_memory(memory.data(), kBytes).is_ok()) return 92;
      publish(**engine, memory.data());
      if (!eventually([&] { return board_->command.load() == 1; })) return 93;
      return check(memory.data());
    });
    EXPECT_TRUE(eventually([&] { return board_->ready.load() == 1; }));
    return pid;
  }

  /// Tells the other process whom to open a session to, and where the memory lies.
  void publish(const Engine& engine, const std::byte* memory) {
    board_->address = reinterpret_cast<std::uintptr_t>(memory);
    std::snprintf(board_->session, sizeof board_->session, "%s", engine.session_id().c_str());
    board_->ready.store(1);
  }
  /// In a child: goes on as another user. False: it may not.
  static bool become_nobody() {
    return ::setresgid(kNobody, kNobody, kNobody) == 0 &&
           ::setresuid(kNobody, kNobody, kNobody) == 0;
  }

  std::vector<Slice> scattered(std::byte* from, std::uint64_t to) {
    std::vector<std::uint32_t> order(kBytes / kPage);
    for (std::uint32_t i = 0; i < order.size(); ++i) order[i] = i;
    std::ranges::shuffle(order, std::mt19937(5));
    std::vector<Slice> slices;
    for (const std::uint32_t page : order)
      slices.push_back({from + page * kPage, to + page * kPage, kPage});
    return slices;
  }
  static std::string transport_of(Engine& engine) {
    const auto sessions = engine.sessions();
    return sessions.empty() ? "" : sessions.front().transport;
  }
  static bool becomes(Engine& engine, const std::string& transport) {
    return eventually([&] { return transport_of(engine) == transport; });
  }
  Board* board_ = nullptr;
  std::vector<pid_t> children_;
};

}  // namespace kvmend
