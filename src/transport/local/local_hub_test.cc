#include "transport/local/local_hub.h"

#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "env/posix/network.h"
#include "env/posix/no_descriptors.h"
#include "kvmend/pool.h"

namespace kvmend::transport::local {
namespace {

using namespace std::chrono_literals;

class TestFds final : public FdLoop {
 public:
  explicit TestFds(env::posix::PosixEventLoop& loop) : loop_(loop) {}
  Result<std::uint64_t> watch(int fd, std::function<void()> on_readable) override {
    auto watcher = std::make_shared<Watcher>();
    watcher->run = std::move(on_readable);
    const auto id = loop_.watch(fd, EPOLLIN, watcher.get());
    if (!id) return std::unexpected(id.error());
    watchers_.emplace(id->value, watcher);
    return id->value;
  }
  void unwatch(std::uint64_t id) override {
    loop_.unwatch({id});
    watchers_.erase(id);
  }

 private:
  struct Watcher final : env::posix::IoWatcher, std::enable_shared_from_this<Watcher> {
    std::function<void()> run;
    void on_io(std::uint32_t) override {
      const auto keep = shared_from_this();
      run();
    }
  };
  env::posix::PosixEventLoop& loop_;
  std::unordered_map<std::uint64_t, std::shared_ptr<Watcher>> watchers_;
};

using env::posix::kNeedsDescriptorsItself;
using env::posix::NoDescriptors;

struct Sink final : PullSink {
  void on_pulled(const PullRequest&, const Status& result) override { results.push_back(result); }
  void on_shared_frame(Bytes frame) override { frames.emplace_back(frame.begin(), frame.end()); }
  void on_source_gone(const Status& why) override { gone.push_back(why); }
  std::vector<Status> results;
  std::vector<Status> gone;
  std::vector<std::vector<std::byte>> frames;
};

/// An engine's worth of tables and its hub.
struct Side {
  explicit Side(env::posix::PosixEnv& env, FdLoop& fds,
                Duration silence = config::kHandshakeDeadline)
      : grants(regions, 100) {
    hub = std::move(
        *LocalHub::create({env.loop(), env.env().random, regions, grants, counters}, fds, silence));
  }
  memory::RegionTable regions;
  memory::GrantTable grants;
  LaneCounters counters;
  std::unique_ptr<LocalHub> hub;
};

class LocalHubTest : public testing::Test {
 protected:
  LocalHubTest()
      : env_(std::move(*env::posix::PosixEnv::create())),
        fds_(env_->loop()),
        sender_(*env_, fds_),
        receiver_(*env_, fds_) {}

  template <class Condition>
  bool run_until(Condition condition) {
    const Time deadline = env_->loop().now() + 30s;
    while (!condition()) {
      if (env_->loop().now() > deadline) return false;
      env_->loop().run_once(10ms);
    }
    return true;
  }
  void link() {
    pulls_ = receiver_.hub->receive_from(sender_.hub->identity(), 5, receiver_sink_);
    ASSERT_NE(pulls_, nullptr);
    offers_ = sender_.hub->send_to(receiver_.hub->identity(), 5, sender_sink_);
    ASSERT_NE(offers_, nullptr);
    ASSERT_TRUE(run_until([&] { return offers_->ready(); }));
  }
  // What the receiving lane makes of a pull frame.
  PullRequest parse(const std::vector<std::byte>& frame, std::byte* to) {
    const auto header = wire::parse_header(Bytes(frame).first(wire::kHeaderBytes));
    EXPECT_TRUE(header);
    PullRequest request;
    const auto body = wire::parse_pull_body(*header, Bytes(frame).subspan(wire::kHeaderBytes),
                                            request.slices, request.sources);
    EXPECT_TRUE(body);
    request.chunk = ChunkId(header->id);
    request.grant = body->grant;
    for (const wire::WireSlice& slice : request.slices) {
      request.where.push_back({to + slice.offset, slice.length});
      request.bytes += slice.length;
    }
    return request;
  }
  static Chunk chunk_of(const Piece& piece, std::uint64_t id) {
    Chunk chunk;
    chunk.id = ChunkId(id);
    chunk.grant = GrantId(50);
    chunk.pieces = std::span(&piece, 1);
    chunk.bytes = static_cast<std::uint32_t>(piece.length);
    return chunk;
  }

  std::unique_ptr<env::posix::PosixEnv> env_;
  TestFds fds_;
  Side sender_;
  Side receiver_;
  Sink receiver_sink_;
  Sink sender_sink_;
  std::unique_ptr<PullReceiver> pulls_;
  std::unique_ptr<PullSender> offers_;
};

TEST_F(LocalHubTest, MovesBytesFromForeignMemoryAndFromPools) {
  link();
  const auto pool = std::move(*MemoryPool::create(1U << 20U));
  ASSERT_TRUE(run_until([&] {  // shown and mapped
    const TargetLink* target = sender_.hub->target_at(receiver_.hub->identity().local_address);
    std::size_t hint = 0;
    return target->find(pool->data(), 1, hint) != nullptr;
  }));
  std::vector<std::byte> foreign(1U << 20U, std::byte{1});
  std::fill_n(pool->data(), pool->size(), std::byte{2});
  std::vector<std::byte> to(1U << 20U);
  std::uint64_t id = 1;
  for (std::byte* from : {foreign.data(), pool->data()}) {
    for (const std::uint64_t length : {4096ULL, 1ULL << 20U}) {  // on the loop, by the threads
      const Piece piece{from, {0, 1}, 0, length};
      std::vector<std::byte> frame;
      ASSERT_TRUE(offers_->offer(chunk_of(piece, ++id), frame));
      const PullRequest request = parse(frame, to.data());
      EXPECT_EQ(request.sources.front().segment == wire::PullSource::kForeignMemory,
                from == foreign.data());
      receiver_sink_.results.clear();
      pulls_->pull(request);
      ASSERT_TRUE(run_until([&] { return !receiver_sink_.results.empty(); }));
      EXPECT_TRUE(receiver_sink_.results.front().is_ok())
          << receiver_sink_.results.front().to_string();
      EXPECT_TRUE(std::equal(to.begin(), to.begin() + static_cast<std::ptrdiff_t>(length), from));
      offers_->withdraw(ChunkId(id), true);
    }
  }
}

// Rule 7: what the sender has cancelled is answered with an error, whatever the frame says.
TEST_F(LocalHubTest, AStaleSourceNeverCounts) {
  link();
  std::vector<std::byte> from(4096, std::byte{1});
  std::vector<std::byte> to(4096);
  const Piece piece{from.data(), {0, 1}, 0, from.size()};
  std::vector<std::byte> frame;
  ASSERT_TRUE(offers_->offer(chunk_of(piece, 9), frame));
  offers_->withdraw(ChunkId(9), false);
  pulls_->pull(parse(frame, to.data()));
  ASSERT_EQ(receiver_sink_.results.size(), 1U);
  EXPECT_EQ(receiver_sink_.results.front().code(), Code::kCancelled);
  EXPECT_EQ(to, std::vector<std::byte>(4096));
}

TEST_F(LocalHubTest, ClosingTheLaneWithdrawsItsOffers) {
  link();
  std::vector<std::byte> from(4096, std::byte{1});
  std::vector<std::byte> to(4096);
  const Piece piece{from.data(), {0, 1}, 0, from.size()};
  std::vector<std::byte> frame;
  ASSERT_TRUE(offers_->offer(chunk_of(piece, 9), frame));
  offers_.reset();
  pulls_->pull(parse(frame, to.data()));
  ASSERT_EQ(receiver_sink_.results.size(), 1U);
  EXPECT_EQ(receiver_sink_.results.front().code(), Code::kCancelled);
}

// Rule 1: once a grant or region has ended, no copy that runs for it writes any more.
TEST_F(LocalHubTest, RevocationStopsCopiesBeforeItReturns) {
  link();
  std::vector<std::byte> from(8U << 20U, std::byte{1});
  std::vector<std::byte> to(8U << 20U);
  const RegionRef ref =
      *receiver_.regions.add(to.data(), to.size(), MemoryKind::kHost, Access::kNone);
  for (int round = 0; round < 20; ++round) {
    memory::Grant grant;
    grant.components = {{.buffers = {{.region = ref, .item_bytes = 4096}}, .pages = {0}}};
    const GrantId id = *receiver_.grants.issue(grant);
    const Piece piece{from.data(), {0, 1}, 0, from.size()};
    Chunk chunk = chunk_of(piece, 100 + static_cast<std::uint64_t>(round));
    chunk.grant = id;
    std::vector<std::byte> frame;
    ASSERT_TRUE(offers_->offer(chunk, frame));
    pulls_->pull(parse(frame, to.data()));
    for (int spins = 0; spins < round * 2'000; ++spins)
      std::atomic_signal_fence(std::memory_order_seq_cst);
    if (round < 19) {
      receiver_.grants.end(id, memory::GrantEnd::kRevoked);
    } else {
      ASSERT_TRUE(receiver_.regions.remove(to.data()).is_ok());
    }
    std::ranges::fill(to, std::byte{7});  // the next user's bytes
    ASSERT_TRUE(run_until([&] { return pulls_->waiting() == 0; }));
    ASSERT_TRUE(std::ranges::all_of(to, [](std::byte b) { return b == std::byte{7}; })) << round;
    offers_->withdraw(chunk.id, true);
  }
}

TEST_F(LocalHubTest, ClosingTheReceivingLaneStopsItsCopies) {
  link();
  std::vector<std::byte> from(8U << 20U, std::byte{1});
  std::vector<std::byte> to(8U << 20U);
  const Piece piece{from.data(), {0, 1}, 0, from.size()};
  std::vector<std::byte> frame;
  ASSERT_TRUE(offers_->offer(chunk_of(piece, 9), frame));
  pulls_->pull(parse(frame, to.data()));
  pulls_.reset();
  std::ranges::fill(to, std::byte{7});
  for (int i = 0; i < 20; ++i) env_->loop().run_once(1ms);
  EXPECT_TRUE(std::ranges::all_of(to, [](std::byte b) { return b == std::byte{7}; }));
  EXPECT_TRUE(receiver_sink_.results.empty());
}

TEST_F(LocalHubTest, OtherHostsUsersAndProcessesAreRefused) {
  const wire::HostIdentity self = sender_.hub->identity();
  const auto refused = [&](const wire::HostIdentity& identity) {
    return receiver_.hub->receive_from(identity, 5, receiver_sink_) == nullptr;
  };
  wire::HostIdentity other = self;
  other.boot_id[0] ^= std::byte{1};
  EXPECT_TRUE(refused(other));
  other = self;
  other.uid += 1;
  EXPECT_TRUE(refused(other));
  other = self;
  other.pid += 1;  // the kernel says who listens there
  EXPECT_TRUE(refused(other));
  other = self;
  other.pid_start += 1;
  EXPECT_TRUE(refused(other));
  other = self;
  other.local_address = "kvmend.nobody";
  EXPECT_TRUE(refused(other));
  other.local_address.clear();
  EXPECT_TRUE(refused(other));
  EXPECT_FALSE(refused(self));
}

TEST_F(LocalHubTest, ALinkThatBreaksSendsChunksByTcp) {
  link();
  pulls_.reset();  // the last lane: the receiver closes its link
  ASSERT_TRUE(run_until([&] { return !offers_->ready(); }));
  const Piece piece{nullptr, {0, 1}, 0, 4096};
  std::vector<std::byte> frame;
  EXPECT_FALSE(offers_->offer(chunk_of(piece, 9), frame));
  EXPECT_EQ(sender_.hub->targets(), 0U);
}

// Whoever connects and says nothing must not hold our descriptors.
TEST_F(LocalHubTest, ASilentLinkIsClosed) {
  Side quick(*env_, fds_, 40ms);
  const auto silent = connect_to(quick.hub->identity().local_address);
  ASSERT_TRUE(silent);
  ASSERT_TRUE(run_until([&] { return quick.hub->targets() == 1; }));
  ASSERT_TRUE(run_until([&] { return quick.hub->targets() == 0; }));
  EXPECT_EQ(receive_message(silent->get()).kind, Received::Kind::kClosed);
}

// The other way round: a sender whose process listens and never answers.
TEST_F(LocalHubTest, ASenderThatNeverAnswersIsLeftToTcp) {
  Side quick(*env_, fds_, 40ms);
  const std::string name = quick.hub->identity().local_address + ".mute";
  const auto mute = listen_at(name);
  ASSERT_TRUE(mute);
  wire::HostIdentity identity = quick.hub->identity();
  identity.local_address = name;
  const auto pulls = quick.hub->receive_from(identity, 5, receiver_sink_);
  ASSERT_TRUE(pulls);
  const auto link = accept_from(mute->get());
  ASSERT_TRUE(link);
  ASSERT_EQ(receive_message(link->get()).kind, Received::Kind::kMessage);  // its hello
  ASSERT_TRUE(
      run_until([&] { return receive_message(link->get()).kind == Received::Kind::kClosed; }));
}

// Without a descriptor the waiting connection keeps the socket readable. Those who have said
// nothing give up their places; links in use stay.
TEST_F(LocalHubTest, AcceptWithoutDescriptorsShedsThenWaitsAndDoesntSpin) {
  if (kNeedsDescriptorsItself) GTEST_SKIP() << "UBSan needs descriptors";
  link();
  ASSERT_EQ(sender_.hub->targets(), 1U);
  const auto silent = connect_to(sender_.hub->identity().local_address);
  ASSERT_TRUE(silent);
  ASSERT_TRUE(run_until([&] { return sender_.hub->targets() == 2; }));
  const auto waiting = connect_to(sender_.hub->identity().local_address);
  ASSERT_TRUE(waiting);
  {
    const NoDescriptors none;
    ASSERT_TRUE(run_until([&] { return sender_.hub->targets() == 1; }));
    EXPECT_EQ(receive_message(silent->get()).kind, Received::Kind::kClosed);
    const Time from = env_->loop().now();
    int turns = 0;
    while (env_->loop().now() < from + 50ms) {
      env_->loop().run_once(25ms);
      ++turns;
    }
    EXPECT_LT(turns, 20);
    EXPECT_EQ(receive_message(waiting->get()).kind, Received::Kind::kNothing);
  }
  EXPECT_TRUE(run_until([&] { return sender_.hub->targets() == 2; }));
  EXPECT_TRUE(offers_->ready());
}

TEST_F(LocalHubTest, AfterGivingUpNothingIsOffered) {
  link();
  offers_->give_up({Code::kUnavailable, Origin::kLocal, "test"});
  EXPECT_FALSE(offers_->ready());
}

}  // namespace
}  // namespace kvmend::transport::local
