// The engine as its users see it: real sockets, real threads.
#include "engine/facade.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <functional>
#include <future>
#include <latch>
#include <thread>

#include "env/posix/network.h"
#include "transport/tcp/tcp_transport.h"

namespace kvmend::engine {
namespace {

using namespace std::chrono_literals;

struct World {
  std::unique_ptr<env::posix::PosixEnv> env = std::move(*env::posix::PosixEnv::create());
  std::thread thread;
  void stop() {
    env->loop().stop();
    if (thread.joinable()) thread.join();
    env->loop().bind_to_this_thread();
  }
  ~World() { stop(); }
};

std::unique_ptr<EngineFacade> make_engine(EngineOptions options = {}) {
  options.spin = 0us;
  options.shutdown_grace = std::min(options.shutdown_grace, 200ms);
  auto world = std::make_shared<World>();
  auto core = std::make_unique<EngineCore>(world->env->env(), options,
                                           transport::tcp::make_tcp_transport, nullptr);
  EXPECT_TRUE(core->start().is_ok());
  world->thread = std::thread([w = world.get()] { w->env->loop().run(); });
  std::latch running(1);
  world->env->loop().post([&] { running.count_down(); });
  running.wait();
  return std::make_unique<EngineFacade>(std::move(core), world, [w = world.get()] { w->stop(); });
}

/// Memory that can be made to fault.
class Pages {
 public:
  explicit Pages(std::size_t bytes)
      : bytes_(bytes),
        data_(static_cast<std::byte*>(
            ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {}
  ~Pages() { ::munmap(data_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  [[nodiscard]] std::byte* at(std::size_t i) const { return data_ + i; }
  [[nodiscard]] std::uint64_t address(std::size_t i) const {
    return reinterpret_cast<std::uint64_t>(data_ + i);
  }
  void forbid(std::size_t from, std::size_t length) {
    ASSERT_EQ(::mprotect(data_ + from, length, PROT_NONE), 0);
  }
  [[nodiscard]] std::size_t size() const { return bytes_; }

 private:
  std::size_t bytes_;
  std::byte* data_;
};

Status wait(const Result<TransferHandle>& handle) {
  if (!handle) return handle.error();
  return (*handle)->wait(60s).value_or(Status(Code::kInternal, Origin::kLocal, "never over"));
}

constexpr std::size_t kPool = 1U << 20;

class Facade : public testing::Test {
 protected:
  Facade() {
    EXPECT_TRUE(
        a_->register_memory(from_.at(0), kPool, MemoryKind::kHost, Access::kReadWrite).is_ok());
    EXPECT_TRUE(
        b_->register_memory(to_.at(0), kPool, MemoryKind::kHost, Access::kReadWrite).is_ok());
    id_ = b_->session_id();
  }
  Slice slice(std::size_t at, std::size_t bytes) { return {from_.at(at), to_.address(at), bytes}; }
  Result<TransferHandle> submit(const Slice& slice, Opcode opcode = Opcode::kWrite,
                                TransferOptions options = {}) {
    return a_->submit(id_, opcode, std::span(&slice, 1), std::move(options));
  }

  Pages from_{kPool};
  Pages to_{kPool};
  std::unique_ptr<EngineFacade> a_ = make_engine();
  std::unique_ptr<EngineFacade> b_ = make_engine();
  std::string id_;
};

TEST_F(Facade, WritesAndReads) {
  std::memset(from_.at(0), 7, 4096);
  EXPECT_TRUE(wait(submit(slice(0, 4096))).is_ok());
  EXPECT_EQ(std::memcmp(from_.at(0), to_.at(0), 4096), 0);
  std::memset(to_.at(0), 8, 4096);
  EXPECT_TRUE(wait(submit(slice(0, 4096), Opcode::kRead)).is_ok());
  EXPECT_EQ(std::memcmp(from_.at(0), to_.at(0), 4096), 0);
}

// R9
TEST_F(Facade, InvalidArgumentsNameWhatIsWrong) {
  const auto text = [](const Result<TransferHandle>& r) {
    return r ? std::string("accepted") : r.error().to_string();
  };
  const Slice good = slice(0, 64);
  const auto with = [&](Slice s) { return text(submit(s)); };
  EXPECT_NE(text(a_->submit("nonsense", Opcode::kWrite, std::span(&good, 1), {})).find("nonsense"),
            std::string::npos);
  EXPECT_NE(text(a_->submit("127.0.0.1:0", Opcode::kWrite, std::span(&good, 1), {})).find("port 0"),
            std::string::npos);
  EXPECT_NE(text(a_->submit(id_, Opcode::kWrite, {}, {})).find("without a slice"),
            std::string::npos);
  EXPECT_NE(with({from_.at(0), to_.address(0), 0}).find("slice 0 has length 0"), std::string::npos);
  EXPECT_NE(with({from_.at(0), to_.address(0), kPool + 1}).find("1048577 bytes"),
            std::string::npos);
  EXPECT_NE(with({nullptr, to_.address(0), 1}).find("aren't registered"), std::string::npos);
  TransferOptions name;
  name.notify = Notification{std::string(1025, 'x'), ""};
  EXPECT_NE(text(submit(good, Opcode::kWrite, std::move(name))).find("1025 bytes"),
            std::string::npos);
  EXPECT_EQ(a_->notify(id_, {"n", std::string((1U << 20) + 1, 'x')}, 1s).code(),
            Code::kInvalidArgument);
  EXPECT_EQ(a_->notify(id_, {"n", ""}, 0s).code(), Code::kInvalidArgument);
  TransferOptions past;
  past.deadline = -1ns;
  EXPECT_NE(text(submit(good, Opcode::kWrite, std::move(past))).find("-1 ns"), std::string::npos);
  EXPECT_EQ(wait(submit({from_.at(0), 64, 64})).code(), Code::kNotRegistered);
  EXPECT_EQ(wait(submit({from_.at(0), ~0ULL - 8, 64})).code(), Code::kNotRegistered);
  EXPECT_TRUE(a_->notify(id_, {std::string(1024, 'n'), std::string(1U << 20, 'x')}, 5s).is_ok());
  EXPECT_TRUE(wait(submit(good)).is_ok());
  ASSERT_EQ(a_->sessions().size(), 1U);
  EXPECT_EQ(a_->sessions()[0].state, "healthy");
}

// The kernel doesn't say which of the frames it was given has the memory that faults.
// Slices merge by address; where the peer's regions touch, the run goes on in the next one.
TEST_F(Facade, ARunMayCrossTheBorderOfThePeersRegions) {
  Pages theirs(std::size_t{3} * 4096);
  for (std::size_t i = 0; i < 2; ++i)
    ASSERT_TRUE(
        b_->register_memory(theirs.at(i * 4096), 4096, MemoryKind::kHost, Access::kReadWrite)
            .is_ok());
  std::memset(from_.at(0), 7, std::size_t{3} * 4096);
  const Slice run{from_.at(0), theirs.address(0), 8192};
  ASSERT_TRUE(a_->transfer(b_->session_id(), Opcode::kWrite, {&run, 1}, {}).is_ok());
  EXPECT_EQ(*theirs.at(8191), std::byte{7});
  const Slice beyond{from_.at(0), theirs.address(0), 8193};
  const Status status = a_->transfer(b_->session_id(), Opcode::kWrite, {&beyond, 1}, {});
  EXPECT_EQ(status.code(), Code::kOutOfRange) << status.to_string();
}

TEST_F(Facade, InaccessibleMemoryFailsItsOwnTransferOnly) {
  from_.forbid(8192, 4096);
  for (int round = 0; round < 50; ++round) {
    std::vector<Result<TransferHandle>> good;
    std::vector<Result<TransferHandle>> bad;
    for (std::size_t i = 0; i < 8; ++i) {
      good.push_back(submit(slice(i * 100, 100)));
      if (i % 4 == 1) bad.push_back(submit(slice(8192 - 50, 100)));
      good.push_back(submit(slice(16384 + i * 100, 100), Opcode::kRead));
    }
    for (const auto& handle : good) EXPECT_TRUE(wait(handle).is_ok()) << wait(handle).to_string();
    for (const auto& handle : bad) EXPECT_EQ(wait(handle).code(), Code::kNotRegistered);
  }
  EXPECT_EQ(a_->sessions()[0].retries, 0U);
}

TEST_F(Facade, ThreadsSubmitCancelAndPollWhileThePeerDies) {
  std::atomic<bool> stop{false};
  std::atomic<int> over{0};
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::size_t i = t;
      while (!stop.load()) {
        TransferOptions options;
        options.deadline = 500ms;
        options.checksum = i % 2 == 0;
        options.urgent = i % 3 == 0;
        options.on_done = [&over](const Status&) { over.fetch_add(1); };
        const auto handle = submit(slice(t * 65536, 1 + i * 7919 % 65536),
                                   i % 5 == 0 ? Opcode::kRead : Opcode::kWrite, std::move(options));
        if (!handle) continue;
        if (i % 3 == 0) (*handle)->cancel();
        if (i % 7 == 0) static_cast<void>(a_->sessions());
        if (i % 11 == 0) static_cast<void>(a_->stats());
        const auto status = (*handle)->wait(30s);
        EXPECT_TRUE(status.has_value());
        if (i % 3 == 0) (*handle)->cancel();
        ++i;
      }
    });
  }
  const auto until = [&](int count) {
    while (over.load() < count) std::this_thread::yield();
  };
  until(200);
  b_.reset();
  until(over.load() + 8);
  stop.store(true);
  for (std::thread& thread : threads) thread.join();
  a_->shutdown(0ms);
}

TEST_F(Facade, AHandleOutlivesItsEngine) {
  std::vector<TransferHandle> handles;
  b_.reset();  // nobody answers
  for (std::size_t i = 0; i < 50; ++i) handles.push_back(*submit(slice(0, kPool)));
  std::thread other([&] {
    for (const TransferHandle& handle : handles) handle->cancel();
  });
  a_.reset();
  other.join();
  for (const TransferHandle& handle : handles) {
    ASSERT_TRUE(handle->poll().has_value());
    EXPECT_FALSE(handle->poll()->is_ok());
    handle->cancel();
  }
}

TEST_F(Facade, AnEngineShutDownByOneThreadIsDestroyedByAnother) {
  EXPECT_TRUE(wait(submit(slice(0, 64))).is_ok());
  EXPECT_TRUE(b_->probe(a_->session_id(), 5s).is_ok());
  std::thread([&] { a_->shutdown(10ms); }).join();
  a_.reset();
  std::thread([&] { b_.reset(); }).join();
}

TEST_F(Facade, AfterShutdownEveryCallReturnsAtOnce) {
  EXPECT_TRUE(wait(submit(slice(0, 64))).is_ok());
  a_->shutdown(10ms);
  a_->shutdown(10ms);
  EXPECT_EQ(wait(submit(slice(0, 64))).code(), Code::kShuttingDown);
  EXPECT_EQ(a_->open_session(id_, 60s).error().code(), Code::kShuttingDown);
  EXPECT_EQ(a_->probe(id_, 60s).code(), Code::kShuttingDown);
  EXPECT_EQ(a_->peer_regions(id_, 60s).error().code(), Code::kShuttingDown);
  EXPECT_EQ(a_->notify(id_, {"n", ""}, 60s).code(), Code::kShuttingDown);
  EXPECT_EQ(a_->unregister_memory(from_.at(0)).code(), Code::kShuttingDown);
  EXPECT_TRUE(a_->sessions().empty());
}

TEST_F(Facade, ShutdownWhileOthersWait) {
  const std::string gone = b_->session_id();
  b_.reset();
  std::thread opens([&] { EXPECT_FALSE(a_->open_session(gone, 60s).has_value()); });
  std::thread probes([&] { EXPECT_FALSE(a_->probe(gone, 60s).is_ok()); });
  std::thread submits([&] {
    while (wait(submit(slice(0, 64))).code() != Code::kShuttingDown) {
    }
  });
  std::thread registers([&] {
    Pages pages(4096);
    while (a_->register_memory(pages.at(0), 4096, MemoryKind::kHost, Access::kReadWrite).is_ok())
      static_cast<void>(a_->unregister_memory(pages.at(0)));
  });
  while (a_->sessions().empty()) std::this_thread::yield();
  a_->shutdown(20ms);
  for (std::thread* thread : {&opens, &probes, &submits, &registers}) thread->join();
}

// Somebody waits for what runs, and somebody else can't wait (Ctrl-C).
TEST_F(Facade, AShutdownThatWaitsCanBeHurried) {
  // A listener that never answers: what is sent there runs until its deadline.
  const int mute = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof at;
  ASSERT_EQ(::bind(mute, reinterpret_cast<sockaddr*>(&at), length), 0);
  ASSERT_EQ(::listen(mute, 16), 0);
  ASSERT_EQ(::getsockname(mute, reinterpret_cast<sockaddr*>(&at), &length), 0);
  TransferOptions options;
  options.deadline = 10min;
  const Slice one = slice(0, 8);
  const auto handle = a_->submit("127.0.0.1:" + std::to_string(ntohs(at.sin_port)), Opcode::kWrite,
                                 std::span(&one, 1), std::move(options));
  ASSERT_TRUE(handle);
  std::future<void> patient = std::async(std::launch::async, [&] { a_->shutdown(10min); });
  EXPECT_EQ(patient.wait_for(20ms), std::future_status::timeout);
  a_->shutdown(0ms);
  ASSERT_EQ(patient.wait_for(60s), std::future_status::ready);
  EXPECT_EQ(wait(handle).code(), Code::kShuttingDown);
  ::close(mute);
}

// The KV manager registers its pools on the loop, past this facade.
TEST_F(Facade, RegionsOfTheLayerAboveCountToo) {
  const Pages more(4096);
  ASSERT_TRUE(wait(submit(slice(0, 8))).is_ok());  // the facade knows its regions now
  const Slice one{more.at(0), to_.address(0), 8};
  EXPECT_EQ(wait(submit(one)).code(), Code::kNotRegistered);
  std::uint64_t told = 0;
  a_->set_registration_watcher([&](std::uint64_t bytes) { told = bytes; });
  a_->run_on_loop([&] {
    ASSERT_TRUE(a_->core()
                    .register_memory(more.at(0), more.size(), MemoryKind::kHost, Access::kNone)
                    .has_value());
  });
  EXPECT_EQ(told, kPool + more.size());
  EXPECT_TRUE(wait(submit(one)).is_ok());
  a_->run_on_loop([&] { ASSERT_TRUE(a_->core().unregister_memory(more.at(0)).is_ok()); });
  EXPECT_EQ(told, kPool);
  EXPECT_EQ(wait(submit(one)).code(), Code::kNotRegistered);
}

TEST_F(Facade, MemoryIsFreeWhenUnregisterReturns) {
  for (int round = 0; round < 20; ++round) {
    Pages own(256U << 10);
    ASSERT_TRUE(
        a_->register_memory(own.at(0), own.size(), MemoryKind::kHost, Access::kReadWrite).is_ok());
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        while (!stop.load()) {
          const Slice part{own.at(0), to_.address(0), own.size()};
          const Status status = wait(
              a_->submit(id_, t == 0 ? Opcode::kRead : Opcode::kWrite, std::span(&part, 1), {}));
          EXPECT_TRUE(status.is_ok() || status.code() == Code::kNotRegistered)
              << status.to_string();
        }
      });
    }
    while (a_->stats().transfers_ok < static_cast<std::uint64_t>(round + 1) * 5)
      std::this_thread::yield();
    ASSERT_TRUE(a_->unregister_memory(own.at(0)).is_ok());
    own.forbid(0, own.size());  // who touches it now ends the process, or fails by EFAULT
    const std::uint64_t retries = a_->stats().retries;
    stop.store(true);
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(a_->stats().retries, retries);
  }
}

TEST_F(Facade, OnDoneMaySubmit) {
  std::atomic<int> left{500};
  std::promise<void> over;
  std::function<void(const Status&)> next = [&](const Status& status) {
    EXPECT_TRUE(status.is_ok()) << status.to_string();
    if (left.fetch_sub(1) == 1) {
      over.set_value();
      return;
    }
    TransferOptions options;
    options.on_done = next;
    EXPECT_TRUE(submit(slice(0, 4096), Opcode::kWrite, std::move(options)).has_value());
  };
  TransferOptions options;
  options.on_done = next;
  ASSERT_TRUE(submit(slice(0, 4096), Opcode::kWrite, std::move(options)).has_value());
  over.get_future().get();
}

TEST_F(Facade, PeerRegionsAreThereWhenTheCallReturns) {
  constexpr std::size_t kRegions = 20'000;  // several messages
  Pages many(kRegions * 64);
  std::vector<MemoryRange> ranges;
  for (std::size_t i = 0; i < kRegions; ++i) ranges.push_back({many.at(i * 64), 32});
  ASSERT_TRUE(b_->register_batch(ranges, MemoryKind::kHost, Access::kRemoteRead).is_ok());
  const auto regions = a_->peer_regions(id_, 5s);
  ASSERT_TRUE(regions.has_value()) << regions.error().to_string();
  ASSERT_EQ(regions->size(), kRegions + 1);
  EXPECT_EQ((*regions)[0].first, to_.address(0));
  const auto empty = make_engine();
  EXPECT_EQ(a_->peer_regions(empty->session_id(), 5s)->size(), 0U);
}

// L4: one of four transfers hangs (its peer's host takes the connection, nobody answers).
TEST_F(Facade, L4_AHangingPeerHoldsUpNobodyElseAndCostsNoThread) {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(at);
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&at), sizeof(at)), 0);
  ASSERT_EQ(::listen(listener, 16), 0);
  ASSERT_EQ(::getsockname(listener, reinterpret_cast<sockaddr*>(&at), &length), 0);
  const std::string hanging = "127.0.0.1:" + std::to_string(ntohs(at.sin_port));

  const auto second = make_engine();
  const auto third = make_engine();
  for (EngineFacade* engine : {second.get(), third.get()})
    ASSERT_TRUE(
        engine->register_memory(to_.at(0), kPool, MemoryKind::kHost, Access::kReadWrite).is_ok());
  const auto threads = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/task"),
                         std::filesystem::directory_iterator{});
  };
  const auto before = threads();
  const Slice one = slice(0, 4096);
  TransferOptions options;
  options.deadline = 20s;
  auto stuck = a_->submit(hanging, Opcode::kWrite, std::span(&one, 1), std::move(options));
  ASSERT_TRUE(stuck.has_value());
  for (int round = 0; round < 200; ++round)
    for (const std::string& peer : {id_, second->session_id(), third->session_id()})
      ASSERT_TRUE(a_->transfer(peer, Opcode::kWrite, std::span(&one, 1), {}).is_ok());
  EXPECT_EQ(threads(), before);
  EXPECT_FALSE((*stuck)->poll().has_value());
  (*stuck)->cancel();
  ::close(listener);
}

// R7
TEST(FacadeTest, EnginesLeaveNoDescriptorsBehind) {
  const auto descriptors = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                         std::filesystem::directory_iterator{});
  };
  const auto before = descriptors();
  for (int i = 0; i < 20; ++i) {
    Pages pages(8192);
    const auto a = make_engine();
    const auto b = make_engine();
    ASSERT_TRUE(
        a->register_memory(pages.at(0), 4096, MemoryKind::kHost, Access::kReadWrite).is_ok());
    ASSERT_TRUE(
        b->register_memory(pages.at(4096), 4096, MemoryKind::kHost, Access::kReadWrite).is_ok());
    const Slice slice{pages.at(0), pages.address(4096), 4096};
    ASSERT_TRUE(a->transfer(b->session_id(), Opcode::kWrite, std::span(&slice, 1), {}).is_ok());
  }
  EXPECT_EQ(descriptors(), before);
}

// Case S3: registering touches nothing, however much it is; what was registered serves at once.
TEST_F(Facade, EightGibibytesAreRegisteredWithoutTouchingThem) {
  constexpr std::size_t kHuge = 8ULL << 30U;
  auto* huge = static_cast<std::byte*>(::mmap(nullptr, kHuge, PROT_READ | PROT_WRITE,
                                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  ASSERT_NE(huge, MAP_FAILED);
  ASSERT_TRUE(b_->register_memory(huge, kHuge, MemoryKind::kHost, Access::kReadWrite).is_ok());
  const auto resident = [&] {
    std::vector<unsigned char> pages(kHuge / 4096);
    EXPECT_EQ(::mincore(huge, kHuge, pages.data()), 0);
    return std::ranges::count_if(pages, [](unsigned char page) { return (page & 1U) != 0; });
  };
  EXPECT_EQ(resident(), 0);
  std::memset(from_.at(0), 7, 4096);
  const Slice last{from_.at(0), reinterpret_cast<std::uint64_t>(huge + kHuge - 4096), 4096};
  EXPECT_TRUE(a_->transfer(id_, Opcode::kWrite, std::span(&last, 1), {}).is_ok());
  EXPECT_EQ(huge[kHuge - 1], std::byte{7});
  EXPECT_LE(resident(), 512);  // one huge page at most
  EXPECT_TRUE(b_->unregister_memory(huge).is_ok());
  ::munmap(huge, kHuge);
}

// Case S1, through the engine: one submit for 15,000 pages, contiguous or not.
TEST_F(Facade, FifteenThousandPagesInOneSubmit) {
  constexpr std::size_t kPages = 15'000;
  constexpr std::size_t kPage = 64;
  for (std::size_t i = 0; i < kPages * kPage; ++i)
    *from_.at(i) = static_cast<std::byte>(i * 7 + i / 64);
  for (const bool scattered : {false, true}) {
    std::memset(to_.at(0), 0, kPool);
    std::vector<Slice> slices;
    for (std::size_t i = 0; i < kPages; ++i) {
      const std::size_t page = scattered ? i * 7 % kPages : i;
      slices.push_back(slice(page * kPage, kPage));
    }
    ASSERT_TRUE(wait(a_->submit(id_, Opcode::kWrite, slices, {})).is_ok());
    EXPECT_EQ(std::memcmp(from_.at(0), to_.at(0), kPages * kPage), 0);
  }
}

// A blocking transfer runs the loop on its caller's thread where the loop's own sleeps.
TEST_F(Facade, ABlockingTransferDrivesTheSleepingLoop) {
  const Slice one = slice(0, 4096);
  std::thread::id ran_on;
  std::size_t driven = 0;
  for (int i = 0; i < 200; ++i) {
    TransferOptions options;
    options.on_done = [&](const Status&) { ran_on = std::this_thread::get_id(); };
    ASSERT_TRUE(a_->transfer(id_, Opcode::kWrite, std::span(&one, 1), std::move(options)).is_ok());
    if (ran_on == std::this_thread::get_id()) ++driven;
    std::this_thread::yield();
  }
  EXPECT_GT(driven, 0U);
  // Several at once: one of them drives, the others are served by it or by the loop's thread.
  std::vector<std::jthread> threads;
  std::atomic<int> good{0};
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 300; ++i) {
        const Slice mine = slice(static_cast<std::size_t>(t) * 4096, 4096);
        if (a_->transfer(id_, Opcode::kWrite, std::span(&mine, 1), {}).is_ok()) ++good;
      }
    });
  threads.clear();
  EXPECT_EQ(good.load(), 1'200);
}

TEST_F(Facade, ALingeringSubmitReturnsAtItsTimeWithTheTransferRunning) {
  b_->shutdown(0s);  // nobody answers any more
  const Slice one = slice(0, 4096);
  TransferOptions options;
  options.linger = 5ms;
  options.deadline = 20s;
  auto handle = a_->submit(id_, Opcode::kWrite, std::span(&one, 1), std::move(options));
  ASSERT_TRUE(handle);
  EXPECT_FALSE((*handle)->poll());
  (*handle)->cancel();
  const auto status = (*handle)->wait(20s);
  ASSERT_TRUE(status);
  EXPECT_EQ(status->code(), Code::kCancelled);
}

}  // namespace
}  // namespace kvmend::engine
