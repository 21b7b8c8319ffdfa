// What strangers and masses may do to an engine: nothing grows, nothing stays.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/config.h"
#include "engine/sim_engines.h"
#include "transport/tcp/tcp_transport.h"

namespace kvmend::engine {
namespace {

using namespace std::chrono_literals;
using transport::tcp::make_tcp_transport;

constexpr std::size_t kKiB = 1024;

/// A connection that speaks whatever a test likes.
struct RawClient final : env::StreamHandler {
  RawClient(env::sim::SimProcess& process, const Address& to)
      : stream(std::move(*process.env().network.connect(to, {}, this))) {}
  void on_connected() override { stream->want_write(true); }
  void on_readable() override {
    std::array<std::byte, 4096> bytes;
    const iovec part{bytes.data(), bytes.size()};
    const env::IoResult io = stream->readv({&part, 1});
    if (io.kind == env::IoResult::Kind::kOk)
      got.insert(got.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(io.bytes));
    over = over || io.kind == env::IoResult::Kind::kEof || io.kind == env::IoResult::Kind::kError;
  }
  void on_writable() override {
    const iovec part{to_send.data(), to_send.size()};
    const env::IoResult io = stream->writev({&part, 1});
    if (io.kind == env::IoResult::Kind::kOk)
      to_send.erase(to_send.begin(), to_send.begin() + static_cast<std::ptrdiff_t>(io.bytes));
    stream->want_write(!to_send.empty() && io.kind != env::IoResult::Kind::kError);
  }
  void on_stream_error(Status) override { over = true; }

  bool over = false;
  std::vector<std::byte> to_send;
  std::vector<std::byte> got;
  std::unique_ptr<env::Stream> stream;
};

class Bounds : public testing::Test {
 protected:
  Bounds() : engines_(make_tcp_transport, 1) {
    engines_.options().recovery.idle_timeout = 3s;
    a_ = &engines_.add();
    b_ = &engines_.add();
    a_->fill(1);
    stranger_ = &engines_.world().add_host("10.0.9.9").start_process("stranger");
  }
  FlightPtr write(std::size_t bytes = 64 * kKiB) {
    return a_->submit(*b_, Opcode::kWrite, {{a_->at(0), b_->address(0), bytes}});
  }
  void notify(std::size_t bytes) {
    FlightPlan plan;
    plan.notify = Notification{"n", std::string(bytes, 'x')};
    const FlightPtr sent = a_->submit_to(b_->core().address(), Opcode::kWrite, {}, std::move(plan));
    ASSERT_TRUE(engines_.finish({sent}));
  }
  /// Queues transfers for an unreachable peer until the session takes no more.
  std::vector<FlightPtr> fill_queue() {
    engines_.world().network().set_fault(SimEngines::ip(0), SimEngines::ip(1),
                                         {.drop_probability = 1});
    std::vector<FlightPtr> flights;
    while (flights.size() < config::kMaxTransfersPerSession) {
      flights.push_back(write(8));
      if (flights.back()->done()) break;
    }
    return flights;
  }
  void expect_initial_counts() {
    ASSERT_TRUE(engines_.run_until(
        [&] { return a_->core().sessions().size() == 0 && b_->core().acceptor().lanes() == 0; },
        90s));
    engines_.run_for(1s);
    EXPECT_EQ(a_->process().open_descriptors(), 1U);  // the listener
    EXPECT_EQ(b_->process().open_descriptors(), 1U);
    EXPECT_EQ(b_->core().grants().size(), 0U);
  }

  SimEngines engines_;
  SimEngine* a_;
  SimEngine* b_;
  env::sim::SimProcess* stranger_;
};

std::vector<std::byte> good_hello(std::uint64_t incarnation, wire::LaneKind kind,
                                  std::uint64_t epoch) {
  wire::Hello hello;
  hello.kind = kind;
  hello.incarnation = Incarnation(incarnation);
  hello.epoch = Epoch(epoch);
  std::vector<std::byte> bytes;
  wire::append_frame(bytes, wire::FrameType::kHello, 0, wire::encode_hello(hello));
  return bytes;
}

// X2
TEST_F(Bounds, GarbageClosesItsOwnConnectionOnly) {
  env::sim::SimRandom random(5);
  std::vector<std::unique_ptr<RawClient>> clients;
  std::vector<FlightPtr> flights;
  std::uint64_t epoch = 0;
  for (int i = 0; i < 400; ++i) {
    auto client = std::make_unique<RawClient>(*stranger_, b_->core().address());
    const auto kind = static_cast<wire::LaneKind>(random.below(2) * 2);  // control or probe
    if (i % 4 != 0)
      client->to_send = good_hello(77, kind, kind == wire::LaneKind::kControl ? ++epoch : 0);
    const std::size_t before = client->to_send.size();
    const std::size_t more = random.below(3'000);
    for (std::size_t k = 0; k < more; ++k)
      client->to_send.push_back(static_cast<std::byte>(random.next()));
    // Some of it begins like a frame, with any lengths.
    if (i % 2 == 0 && more > 32) {
      store_le<std::uint32_t>(client->to_send.data() + before, 0x314D564BU);
      client->to_send[before + 4] = static_cast<std::byte>(1 + random.below(13));
      client->to_send[before + 5] = client->to_send[before + 6] = client->to_send[before + 7] = {};
    }
    // And some is a good hello with one bit flipped.
    if (i % 7 == 0 && before > 0) client->to_send[random.below(before)] ^= std::byte{4};
    clients.push_back(std::move(client));
    if (i % 10 == 0) flights.push_back(write());
    engines_.run_for(5ms);
  }
  ASSERT_TRUE(engines_.finish(flights));
  for (const FlightPtr& flight : flights) EXPECT_TRUE(flight->ok()) << flight->text();
  EXPECT_EQ(a_->session(*b_)->health().counters().strikes, 0U);
  EXPECT_GT(b_->core().stats().protocol_errors, 100U);
  engines_.run_for(40s);
  EXPECT_LE(b_->core().acceptor().lanes(), 2U);  // a's
  clients.clear();
  expect_initial_counts();
}

// X1
TEST_F(Bounds, HugeLengthsAreRefusedBeforeAnythingIsReserved) {
  for (const std::uint32_t length : {0xFFFF'FFFFU, 1U << 30, (16U << 20) + 1}) {
    for (int type = 1; type <= 14; ++type) {
      RawClient client(*stranger_, b_->core().address());
      client.to_send = good_hello(78, wire::LaneKind::kProbe, 0);
      std::vector<std::byte> frame(32);
      store_le<std::uint32_t>(frame.data(), 0x314D564BU);
      frame[4] = static_cast<std::byte>(type);
      store_le<std::uint32_t>(frame.data() + 8, length);
      store_le<std::uint32_t>(frame.data() + 12, length);
      client.to_send.insert(client.to_send.end(), frame.begin(), frame.end());
      ASSERT_TRUE(engines_.run_until([&] { return client.over; }, 1s)) << type;
    }
  }
  EXPECT_EQ(b_->core().stats().protocol_errors, 3U * 14U);
}

// X1: a stranger's lane has no rights but on its own scratch memory.
TEST_F(Bounds, AProbeLaneWritesNowhereButIntoItsScratch) {
  RawClient client(*stranger_, b_->core().address());
  client.to_send = good_hello(79, wire::LaneKind::kProbe, 0);
  const std::vector<std::byte> before = b_->pool();
  const wire::WireSlice slice{b_->region(), 0, 8};
  wire::append_data_frame(client.to_send, wire::FrameType::kWrite, 0, ChunkId(1),
                          {memory::kStandingGrant, 0}, std::span(&slice, 1), 8);
  client.to_send.resize(client.to_send.size() + 8, std::byte{0x55});
  wire::append_data_frame(client.to_send, wire::FrameType::kRead, 0, ChunkId(2),
                          {memory::kStandingGrant, 0}, std::span(&slice, 1), 0);
  engines_.run_for(100ms);
  EXPECT_TRUE(b_->pool() == before);
  EXPECT_EQ(b_->core().stats().frames_refused, 2U);
  EXPECT_FALSE(client.over);
}

// X4
TEST_F(Bounds, IdleConnectionsKeepNobodyOutAndAreShed) {
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 2'000; ++i) {
    clients.push_back(std::make_unique<RawClient>(*stranger_, b_->core().address()));
    if (i % 50 == 0) engines_.run_for(1ms);
  }
  const FlightPtr flight = write();
  ASSERT_TRUE(engines_.finish({flight}, 2s));
  EXPECT_TRUE(flight->ok()) << flight->text();
  EXPECT_LE(b_->core().acceptor().lanes(), config::kMaxPendingHandshakes + 2);
  engines_.run_for(config::kHandshakeDeadline + 2s);
  EXPECT_LE(b_->core().acceptor().lanes(), 2U);
  expect_initial_counts();
}

// Another protocol's first message may be shorter than a frame's header.
TEST_F(Bounds, AnotherProtocolIsClosedAtItsFirstBytes) {
  RawClient client(*stranger_, b_->core().address());
  for (const char byte : std::string_view("\4\0\0\0\0\0\0\0\3{}\n", 12))
    client.to_send.push_back(static_cast<std::byte>(byte));
  engines_.run_for(100ms);
  EXPECT_TRUE(client.over);
  EXPECT_EQ(b_->core().stats().protocol_errors, 1U);
}

// The same with a hello and nothing more, and with bytes that come one by one.
TEST_F(Bounds, HelloAndSilenceAndTricklesAreShed) {
  std::vector<std::unique_ptr<RawClient>> clients;
  for (std::uint64_t i = 0; i < 300; ++i) {
    clients.push_back(std::make_unique<RawClient>(*stranger_, b_->core().address()));
    clients.back()->to_send =
        good_hello(1'000 + i, i % 2 == 0 ? wire::LaneKind::kControl : wire::LaneKind::kProbe,
                   i % 2 == 0 ? 1 : 0);
  }
  engines_.run_for(1s);
  const FlightPtr flight = write();
  ASSERT_TRUE(engines_.finish({flight}, 2s));
  EXPECT_TRUE(flight->ok());
  engines_.run_for(config::kInboundIdle + 5s);
  EXPECT_LE(b_->core().acceptor().lanes(), 2U);
  expect_initial_counts();
}

// L5
TEST_F(Bounds, L5_RandomCancelsLeaveNothingBehind) {
  env::sim::SimRandom random(9);
  std::vector<FlightPtr> flights;
  for (int i = 0; i < 3'000; ++i) {
    const std::size_t bytes = 1 + random.below(20'000);
    flights.push_back(
        a_->submit(*b_, random.below(2) == 0 ? Opcode::kRead : Opcode::kWrite,
                   {{a_->at(0), b_->address(0), bytes}},
                   {.checksum = random.below(4) == 0, .urgent = random.below(8) == 0}));
    if (random.below(2) == 0) a_->cancel(flights[random.below(flights.size())]);
    if (random.below(4) == 0) engines_.run_for(std::chrono::microseconds(random.below(300)));
    if (random.below(500) == 0)
      engines_.world().network().reset_connections(SimEngines::ip(0), SimEngines::ip(1));
  }
  ASSERT_TRUE(engines_.finish(flights));
  for (const FlightPtr& flight : flights)
    EXPECT_TRUE(flight->ok() || flight->code() == Code::kCancelled) << flight->text();
  EXPECT_EQ(a_->session(*b_)->info().outstanding_bytes, 0U);
  EXPECT_EQ(a_->session(*b_)->health().in_flight(), 0U);
  expect_initial_counts();
}

TEST_F(Bounds, AnIdleSessionIsRetiredWithEverythingOfIt) {
  ASSERT_TRUE(engines_.finish({write()}));
  expect_initial_counts();
  // And comes again, over a higher epoch.
  const FlightPtr again = write();
  ASSERT_TRUE(engines_.finish({again}, 1s));
  EXPECT_TRUE(again->ok()) << again->text();
}

// B6
TEST_F(Bounds, ShutdownEndsFiftyTransfersWithinItsGraceAndTellsPeers) {
  for (const bool slow : {false, true}) {
    if (slow)
      engines_.world().network().set_fault_between(SimEngines::ip(0), SimEngines::ip(1),
                                                   {.bytes_per_second = 1e6});
    SimEngine& c = engines_.add();
    std::vector<FlightPtr> flights;
    ASSERT_TRUE(engines_.finish({c.submit(*a_, Opcode::kWrite, {{c.at(0), a_->address(0), 8}})}));
    SimEngine& leaving = *a_;
    for (std::size_t i = 0; i < 50; ++i) flights.push_back(write(256 * kKiB));
    engines_.run_for(1ms);
    bool drained = false;
    const Time from = engines_.world().now();
    leaving.core().shutdown(2s, [&] { drained = true; });
    const FlightPtr late = write(8);
    EXPECT_EQ(late->code(), Code::kShuttingDown);
    ASSERT_TRUE(engines_.run_until([&] { return drained; }, 3s));
    EXPECT_LE(engines_.world().now() - from, 2100ms);
    std::size_t ok = 0;
    for (const FlightPtr& flight : flights) {
      ASSERT_TRUE(flight->done());
      ok += flight->ok() ? 1 : 0;
      if (!flight->ok()) {
        EXPECT_EQ(flight->code(), Code::kShuttingDown) << flight->text();
      }
    }
    EXPECT_EQ(ok == 50, !slow);
    // A peer that has a session to it knows at once, and why.
    ASSERT_TRUE(engines_.run_until([&] { return c.state(leaving) == "failed"; }, 100ms));
    EXPECT_NE(c.session(leaving)->info().last_error.find("shutting"), std::string::npos)
        << c.session(leaving)->info().last_error;
    EXPECT_EQ(leaving.process().open_descriptors(), 0U);
    if (!slow) {
      engines_.restart(0);
      a_ = &engines_[0];
      engines_.world().network().clear_all_faults();
    }
  }
}

// Nobody fetches them: what they take is bounded in bytes, not only in number.
TEST_F(Bounds, NotificationsThatNobodyFetchesAreDroppedBeyondSomeBytes) {
  for (int i = 0; i < 70; ++i) notify(1U << 20U);
  EXPECT_EQ(b_->core().stats().notifications_dropped, 7U);  // with its name each has 1 MiB + 1
  EXPECT_EQ(b_->core().take_notifications().size(), 63U);
  notify(1);
  EXPECT_EQ(b_->core().take_notifications().size(), 1U);
}

// Rule 5: what waits for an unreachable peer is bounded, and reaching the bound is no fault of the
// peer's.
TEST_F(Bounds, AFullQueueRefusesAtOnceWithoutAStrike) {
  const std::vector<FlightPtr> flights = fill_queue();
  ASSERT_EQ(flights.size(), config::kMaxTransfersPerSession);
  ASSERT_FALSE(flights.back()->done()) << flights.back()->text();
  for (int i = 0; i < 10; ++i) {
    const FlightPtr refused = write(8);
    ASSERT_TRUE(refused->done());
    EXPECT_EQ(refused->code(), Code::kResourceExhausted);
    EXPECT_EQ(refused->result->origin(), Origin::kLocal);
  }
  EXPECT_EQ(a_->session(*b_)->health().counters().strikes, 0U);
  EXPECT_EQ(a_->state(*b_), "connecting");
  // One that ends makes room for one.
  a_->cancel(flights[5]);
  EXPECT_FALSE(write(8)->done());
  EXPECT_TRUE(write(8)->done());
  // The peer comes back: everything that waited goes.
  engines_.world().network().clear_all_faults();
  ASSERT_TRUE(engines_.finish({flights.back()}, 25s)) << a_->state(*b_);
  EXPECT_TRUE(flights.back()->ok()) << flights.back()->text();
  EXPECT_TRUE(flights.front()->ok());
}

// Ending a full queue must not block the loop: no step may walk the whole queue.
TEST_F(Bounds, AFullQueueEndsInOneGoWhenItsDeadlineComes) {
  const std::vector<FlightPtr> flights = fill_queue();
  ASSERT_TRUE(engines_.finish({flights.front(), flights.back()}, 60s));
  for (const FlightPtr& flight : flights) ASSERT_EQ(flight->code(), Code::kSessionFailed);
  EXPECT_EQ(a_->session(*b_)->transfers(), 0U);
  const FlightPtr next = write(8);
  EXPECT_FALSE(next->done());
}

}  // namespace
}  // namespace kvmend::engine
