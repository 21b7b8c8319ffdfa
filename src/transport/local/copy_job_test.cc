#include "transport/local/copy_job.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <thread>

#include "env/posix/clock.h"
#include "env/posix/event_loop.h"
#include "kvmend/pool.h"
#include "memory/pool_registry.h"
#include "transport/local/copy_workers.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace kvmend::transport::local {
namespace {

using namespace std::chrono_literals;
using Outcome = CopyJob::Outcome;

constexpr ChunkId kChunk{77};
constexpr std::size_t kBytes = 3U << 20U;

/// A sender in this very process (or in `pid`) and one chunk of its memory.
class Rig {
 public:
  explicit Rig(pid_t pid = ::getpid()) {
    board = std::move(*Board::create());
    auto peer = PeerBoard::map(UniqueFd(::dup(board->fd())));
    auto process = PeerProcess::open(pid, 0);
    source = std::make_shared<SourceMemory>(std::move(*process), std::move(*peer), true);
    from.resize(kBytes);
    to.resize(kBytes);
    for (std::size_t i = 0; i < kBytes; ++i) from[i] = static_cast<std::byte>(i * 7 + i / 4096);
    EXPECT_TRUE(board->open(kChunk));
  }

  [[nodiscard]] PullRequest request(std::uint32_t segment, std::uint64_t address) {
    PullRequest request;
    request.chunk = kChunk;
    request.bytes = kBytes;
    constexpr std::size_t kPage = 12'288;
    for (std::size_t at = 0; at < kBytes; at += kPage) {  // from back to front
      const std::size_t n = std::min(kPage, kBytes - at);
      request.where.push_back({to.data() + at, n});
      request.sources.push_back({segment, address + at});
    }
    return request;
  }
  [[nodiscard]] PullRequest foreign_request() {
    return request(wire::PullSource::kForeignMemory, reinterpret_cast<std::uintptr_t>(from.data()));
  }
  Outcome run(CopyJob& job) {
    job.run(clock, *board, 0);
    return job.outcome();
  }
  Outcome run(PullRequest what) {
    CopyJob job(std::move(what), source, segments, pools, nullptr);
    return run(job);
  }

  env::posix::PosixClock clock;
  std::unique_ptr<Board> board;
  std::shared_ptr<SourceMemory> source;
  std::shared_ptr<const SegmentMap> segments = std::make_shared<SegmentMap>();
  std::shared_ptr<const memory::PoolSegments> pools = std::make_shared<memory::PoolSegments>();
  std::vector<std::byte> from;
  std::vector<std::byte> to;
};

std::shared_ptr<const SegmentMap> one_segment(const std::vector<std::byte>& bytes) {
  UniqueFd fd(::memfd_create("t", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::pwrite(fd.get(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, memory::kSegmentSeals), 0);
  auto map = std::make_shared<SegmentMap>();
  (*map)[4] = *MappedSegment::map(std::move(fd), bytes.size());
  return map;
}

TEST(CopyJob, CopiesForeignMemory) {
  Rig s;
  EXPECT_EQ(s.run(s.foreign_request()), Outcome::kCopied);
  EXPECT_EQ(s.from, s.to);
}

TEST(CopyJob, CopiesFromAMappedSegment) {
  Rig s;
  s.segments = one_segment(s.from);
  s.source->foreign = false;
  EXPECT_EQ(s.run(s.request(4, 0)), Outcome::kCopied);
  EXPECT_EQ(s.from, s.to);
}

TEST(CopyJob, WhatCantBeReachedIsDenied) {
  Rig s;
  s.segments = one_segment(s.from);
  EXPECT_EQ(s.run(s.request(5, 0)), Outcome::kDenied);     // no such segment
  EXPECT_EQ(s.run(s.request(4, 4096)), Outcome::kDenied);  // beyond its end
  s.source->foreign = false;
  EXPECT_EQ(s.run(s.foreign_request()), Outcome::kDenied);
  EXPECT_TRUE(std::ranges::all_of(s.to, [](std::byte b) { return b == std::byte{0}; }));
}

TEST(CopyJob, ChecksTheChecksumOfWhatArrived) {
  Rig s;
  PullRequest request = s.foreign_request();
  request.has_checksum = true;
  request.checksum = XXH3_64bits(s.from.data(), s.from.size());
  EXPECT_EQ(s.run(request), Outcome::kCopied);
  request.checksum ^= 1U;
  EXPECT_EQ(s.run(request), Outcome::kCorrupt);
}

TEST(CopyJob, AStoppedOneWritesNothing) {
  Rig s;
  CopyJob job(s.foreign_request(), s.source, s.segments, s.pools, nullptr);
  job.stop();
  EXPECT_EQ(s.run(job), Outcome::kStopped);
  EXPECT_TRUE(std::ranges::all_of(s.to, [](std::byte b) { return b == std::byte{0}; }));
}

TEST(CopyJob, AnExpiredGrantWritesNothing) {
  Rig s;
  PullRequest request = s.foreign_request();
  request.expires = s.clock.now() - 1ms;
  EXPECT_EQ(s.run(request), Outcome::kExpired);
  EXPECT_TRUE(std::ranges::all_of(s.to, [](std::byte b) { return b == std::byte{0}; }));
}

TEST(CopyJob, AWithdrawnChunkNeverCounts) {
  Rig s;
  s.board->close(kChunk);
  EXPECT_EQ(s.run(s.foreign_request()), Outcome::kWithdrawn);
  EXPECT_EQ(s.run(PullRequest{.chunk = kChunk}), Outcome::kWithdrawn);  // asked after the last step
}

TEST(CopyJob, SourceMemoryThatIsGoneIsAnError) {
  Rig s;
  void* page = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const PullRequest request =
      s.request(wire::PullSource::kForeignMemory, reinterpret_cast<std::uintptr_t>(page));
  EXPECT_EQ(s.run(request), Outcome::kCopied);
  ::munmap(static_cast<std::byte*>(page) + kBytes / 2, kBytes / 2);
  EXPECT_EQ(s.run(request), Outcome::kSourceFault);
  ::munmap(page, kBytes / 2);
}

// The receiver's own memory was unmapped by a caller who forgot to unregister it: an error,
// whatever kind of memory it is and wherever the bytes come from.
TEST(CopyJob, OwnMemoryThatIsGoneIsAnErrorAndNoSignal) {
  for (const bool to_pool : {false, true}) {
    for (const bool from_segment : {false, true}) {
      for (const bool checksum : {false, true}) {
        Rig s;
        if (from_segment) s.segments = one_segment(s.from);
        std::unique_ptr<MemoryPool> pool;
        std::byte* target = nullptr;
        if (to_pool) {
          pool = std::move(*MemoryPool::create(kBytes));
          target = pool->data();
          s.pools =
              std::make_shared<memory::PoolSegments>(memory::PoolRegistry::of_process().list());
        } else {
          target = static_cast<std::byte*>(
              ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        }
        PullRequest request = from_segment ? s.request(4, 0) : s.foreign_request();
        request.has_checksum = checksum;
        wire::Checksum sum;
        std::size_t at = 0;
        for (iovec& where : request.where) {
          sum.update({s.from.data() + at, where.iov_len});
          where.iov_base = target + at;
          at += where.iov_len;
        }
        request.checksum = sum.value();
        ASSERT_EQ(s.run(request), Outcome::kCopied);
        ASSERT_EQ(std::memcmp(target, s.from.data(), kBytes), 0);
        ::munmap(target + kBytes / 2, kBytes / 2);
        EXPECT_EQ(s.run(request), Outcome::kTargetFault)
            << (to_pool ? "pool" : "foreign") << (from_segment ? " from segment" : " from process");
        ::munmap(target, kBytes / 2);
      }
    }
  }
}

TEST(CopyJob, ASenderThatDiesOrExecsDoesntCount) {
  Rig s;
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (true) ::pause();
  }
  s.source = std::make_shared<SourceMemory>(
      std::move(*PeerProcess::open(child, 0)),
      std::move(*PeerBoard::map(UniqueFd(::dup(s.board->fd())))), true);
  EXPECT_EQ(s.run(s.foreign_request()), Outcome::kCopied);
  s.source->link_open.store(false);
  EXPECT_EQ(s.run(s.foreign_request()), Outcome::kGone);
  s.source->link_open.store(true);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(s.run(s.foreign_request()), Outcome::kGone);
}

// `stop` in the middle of copies: whatever the moment, nothing is written once it has returned.
TEST(CopyJob, NothingIsWrittenAfterStopReturns) {
  Rig s;
  for (int round = 0; round < 50; ++round) {
    CopyJob job(s.foreign_request(), s.source, s.segments, s.pools, nullptr);
    std::jthread copier([&] { job.run(s.clock, *s.board, round % 2 == 0 ? 0 : 1); });
    for (int spins = 0; spins < round * 200; ++spins)
      std::atomic_signal_fence(std::memory_order_seq_cst);
    job.stop();
    std::memset(s.to.data(), 0x5A, s.to.size());
    copier.join();
    ASSERT_TRUE(std::ranges::all_of(s.to, [](std::byte b) { return b == std::byte{0x5A}; }));
  }
}

// The sender's side of the same: once it has closed the chunk and sees no mark, nobody reads it.
TEST(CopyJob, NothingIsReadOnceTheSenderHasWaited) {
  Rig s;
  const auto peer = std::move(*PeerBoard::map(UniqueFd(::dup(s.board->fd()))));
  for (int round = 0; round < 50; ++round) {
    if (round > 0) {
      ASSERT_TRUE(s.board->open(kChunk));
    }
    std::ranges::fill(s.from, std::byte{1});
    CopyJob job(s.foreign_request(), s.source, s.segments, s.pools, nullptr);
    std::jthread copier([&] { job.run(s.clock, *s.board, 0); });
    for (int spins = 0; spins < round * 200; ++spins)
      std::atomic_signal_fence(std::memory_order_seq_cst);
    s.board->close(kChunk);
    while (peer->is_reading(kChunk)) {
    }
    std::ranges::fill(s.from, std::byte{2});  // somebody else's bytes
    copier.join();
    ASSERT_TRUE(std::ranges::none_of(s.to, [](std::byte b) { return b == std::byte{2}; }));
  }
}

TEST(CopyWorkers, CopyOnTwoThreadsAndAnswerOnTheLoop) {
  auto loop = std::move(*env::posix::PosixEventLoop::create());
  Rig s;
  std::size_t answered = 0;
  CopyWorkers workers(*loop, *s.board, [&](std::vector<std::shared_ptr<CopyJob>>& jobs) {
    EXPECT_TRUE(loop->in_loop_thread());
    for (const auto& job : jobs) EXPECT_EQ(job->outcome(), Outcome::kCopied);
    answered += jobs.size();
  });
  EXPECT_EQ(workers.threads(), 0U);
  for (int i = 0; i < 10; ++i)
    workers.submit(
        std::make_shared<CopyJob>(s.foreign_request(), s.source, s.segments, s.pools, nullptr));
  const Time deadline = loop->now() + 30s;
  while (answered < 10 && loop->now() < deadline) loop->run_once(10ms);
  EXPECT_EQ(answered, 10U);
  EXPECT_EQ(workers.threads(), kMaxCopyThreads);
  EXPECT_EQ(s.from, s.to);
}

}  // namespace
}  // namespace kvmend::transport::local
