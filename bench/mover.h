// A process that moves scattered pages into one or two targets, by kvmend or by the machine's raw
// means, whenever it is told to. run.py tells it, in turns with the peers that it is compared with.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "kvmend/engine.h"
#include "kvmend/pool.h"
#include "memory/pool_registry.h"
#include "pages.h"
#include "pair.h"

namespace kvmend::bench {

struct MoverSettings {
  bool local = false;     ///< transport: local, else tcp
  bool pool = true;       ///< memory of the source (tcp: and of the target)
  std::size_t peers = 1;  ///< targets, each gets its share of the pages
  std::size_t threads = 1;
  std::size_t total_mib = 256;
  bool pin = false;  ///< each process to a core of its own; so are tcp's with one peer
  bool checksum = false;
  bool read = false;                  ///< kvmend reads the target's pages instead of writing them
  std::chrono::microseconds delay{};  ///< of a proxy between both sides, each way (tcp); 0: none
  EngineOptions engine;
};

/// What the parent asks of a target.
enum class Ask : std::uint32_t {
  kKvmend,  ///< the engine does it: wait
  kRaw,     ///< receive (tcp) or copy (local), with headers
  kPlain,   ///< tcp: the same without headers
  kWindow,  ///< tcp: with headers, each frame answered
  kPong,    ///< answer `numbers[kCount]` pings
  kEnd,
};

/// Places in Shared::numbers.
enum Fact : std::size_t {
  kPort,
  kAddress,    // of the target's pages
  kSourcePid,  // of the parent
  kSourceAddress,
  kSourceFd,
  kPageBytes,
  kCheck,  // 1: look at the bytes afterwards
  kCount,
  kFirstPage,  // of the source's order that goes to this target
  kResident,
  kThreads,
};

constexpr std::uint64_t kFillSeed = 0x6b766d656e64ULL;
constexpr std::uint64_t kOrderSeed = 1;

[[noreturn]] inline void fail_hard(const std::string& what) {
  std::fprintf(stderr, "mover: %s\n", what.c_str());
  std::exit(1);
}

inline void expect_ok(const Status& status) {
  if (!status.is_ok()) fail_hard(status.to_string());
}

template <class T>
T take(Result<T> result) {
  if (!result) fail_hard(result.error().to_string());
  return std::move(*result);
}

/// kvmend's pool, or anonymous memory with huge pages advised.
class Memory {
 public:
  Memory(bool pool, std::size_t bytes) : bytes_(bytes) {
    if (pool) {
      pool_ = take(MemoryPool::create(bytes));
      for (const auto& segment : memory::PoolRegistry::of_process().list())
        if (segment->base() == pool_->data()) fd_ = segment->fd();
      std::memset(pool_->data(), 0, bytes);
    } else {
      buffer_ = std::make_unique<Buffer>(bytes, PageMemory::kHuge);
    }
  }
  std::byte* data() { return pool_ ? pool_->data() : buffer_->data(); }
  std::span<std::byte> bytes() { return {data(), bytes_}; }
  [[nodiscard]] int fd() const { return fd_; }

 private:
  std::size_t bytes_;
  std::unique_ptr<MemoryPool> pool_;
  std::unique_ptr<Buffer> buffer_;
  int fd_ = -1;
};

/// Where each page of a transfer comes from and goes to. The same in every process.
struct Orders {
  /// `first`: of the source's pages; `count` of them go to one target.
  Orders(std::size_t total_pages, std::size_t first, std::size_t count)
      : src(random_order(total_pages, kOrderSeed)), dst(random_order(count, kOrderSeed + 1)) {
    src = {src.begin() + static_cast<std::ptrdiff_t>(first),
           src.begin() + static_cast<std::ptrdiff_t>(first + count)};
  }
  std::vector<std::uint32_t> src;
  std::vector<std::uint32_t> dst;
};

/// The child's side: obeys until kEnd.
void run_target(const MoverSettings& settings, Pair& pair);

}  // namespace kvmend::bench
