// The acceptor against initiators that a test drives lane by lane: fences, tokens, refusals.
#include "session/acceptor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/config.h"
#include "env/sim/world.h"
#include "session/session_table.h"
#include "transport/tcp/tcp_transport.h"

namespace kvmend::session {
namespace {

using namespace std::chrono_literals;
using transport::Lane;

const Address kTarget{"10.0.0.2", 7000};

/// What every side of a lane needs.
struct Side {
  explicit Side(env::sim::SimProcess& p)
      : process(p),
        grants(regions, 1),
        transport({p.loop(), random, regions, grants, counters}, network(), {}) {}
  env::Network& network() { return process.env().network; }
  env::sim::SimProcess& process;
  env::sim::SimRandom random{11};
  memory::RegionTable regions;
  memory::GrantTable grants;
  transport::LaneCounters counters;
  transport::tcp::TcpTransport transport;
};

struct Events final : AcceptorEvents {
  std::vector<std::string> upper;
  int hellos = 0;
  void on_peer_hello(const std::string&, Incarnation) override { ++hellos; }
  void on_peer_goodbye(const std::string&, const std::string&) override {}
  void on_upper(const std::string&, Incarnation, std::uint32_t, Bytes body) override {
    upper.emplace_back(reinterpret_cast<const char*>(body.data()), body.size());
  }
  void on_notify(Notification) override {}
};

/// A lane of a test's initiator, and what came of it.
struct Dialled final : transport::LaneObserver {
  std::unique_ptr<Lane> lane;
  std::optional<wire::HelloAck> ack;
  std::optional<wire::HelloReject> reject;
  bool down = false;
  std::vector<wire::AckEntry> done;
  std::vector<std::uint64_t> control_acks;
  void on_hello_ack(Lane&, const wire::HelloAck& a) override { ack = a; }
  void on_hello_reject(Lane&, const wire::HelloReject& r) override { reject = r; }
  void on_chunk_done(Lane&, const wire::AckEntry& entry) override { done.push_back(entry); }
  void on_control_ack(Lane&, std::uint64_t seq) override { control_acks.push_back(seq); }
  void on_lane_down(Lane&, const Status&) override { down = true; }
  [[nodiscard]] bool answered() const { return ack || reject || down; }
  [[nodiscard]] bool open() const { return ack && !down; }
};
using DialledPtr = std::unique_ptr<Dialled>;

class AcceptorTest : public testing::Test {
 protected:
  AcceptorTest()
      : world_(3, {.bytes_per_second = 20e6}),
        there_(world_.add_host("10.0.0.2").start_process("target")),
        here_(world_.add_host("10.0.0.1").start_process("initiator")) {
    self_.incarnation = Incarnation(0xBB);
    self_.session_id = kTarget.to_string();
    ref_ =
        *there_.regions.add(memory_.data(), memory_.size(), MemoryKind::kHost, Access::kReadWrite);
    EXPECT_TRUE(there_.transport.listen(kTarget, &acceptor_).has_value());
    std::iota(reinterpret_cast<unsigned char*>(source_.data()),
              reinterpret_cast<unsigned char*>(source_.data() + source_.size()), 1);
  }
  ~AcceptorTest() override {
    there_.transport.stop_listening();
    acceptor_.close_all();
    world_.run_for(1ms);
  }

  DialledPtr dial(const wire::Hello& hello) {
    auto dialled = std::make_unique<Dialled>();
    dialled->lane = std::move(*here_.transport.connect(kTarget, hello, dialled.get()));
    return dialled;
  }
  static wire::Hello hello(wire::LaneKind kind, std::uint64_t epoch = 0) {
    wire::Hello hello;
    hello.kind = kind;
    hello.incarnation = Incarnation(0xAA);
    hello.session_id = "10.0.0.1:7000";
    hello.epoch = Epoch(epoch);
    return hello;
  }
  DialledPtr control(std::uint64_t epoch) { return dial(hello(wire::LaneKind::kControl, epoch)); }
  DialledPtr data(std::uint64_t epoch, const std::optional<wire::Token>& token) {
    wire::Hello h = hello(wire::LaneKind::kData, epoch);
    h.token = token;
    return dial(h);
  }
  bool answer(const DialledPtr& dialled) {
    return world_.run_until([&] { return dialled->answered(); }, 5s);
  }
  transport::Chunk chunk(std::uint64_t id, std::size_t bytes) {
    piece_ = {source_.data(), ref_, 0, bytes};
    transport::Chunk chunk;
    chunk.id = ChunkId(id);
    chunk.grant = memory::kStandingGrant;
    chunk.pieces = std::span(&piece_, 1);
    chunk.bytes = static_cast<std::uint32_t>(bytes);
    return chunk;
  }

  env::sim::SimWorld world_;
  Side there_;
  Side here_;
  Self self_;
  Events events_;
  Acceptor acceptor_{there_.process.loop(), there_.random, self_, there_.regions, events_};
  std::vector<std::byte> memory_{1U << 20};
  std::vector<std::byte> source_{1U << 20};
  RegionRef ref_;
  transport::Piece piece_;
};

TEST_F(AcceptorTest, OnlyAHigherEpochIsAcceptedWhateverTheOrder) {
  env::sim::SimRandom random(5);
  std::uint64_t highest = 0;
  for (int round = 0; round < 20; ++round) {
    // While the target stood still, hellos of many attempts have piled up in its backlog.
    there_.process.pause();
    std::vector<std::uint64_t> epochs(30);
    std::iota(epochs.begin(), epochs.end(), static_cast<std::uint64_t>(round) * 20 + 1);
    for (std::size_t i = epochs.size(); i > 1; --i)
      std::swap(epochs[i - 1], epochs[random.below(i)]);
    std::vector<DialledPtr> lanes;
    for (const std::uint64_t epoch : epochs) lanes.push_back(control(epoch));
    world_.run_for(10ms);
    there_.process.resume();
    for (const DialledPtr& lane : lanes) ASSERT_TRUE(answer(lane));
    world_.run_for(10ms);
    const std::uint64_t top = static_cast<std::uint64_t>(round) * 20 + 30;
    for (std::size_t i = 0; i < lanes.size(); ++i) {
      EXPECT_EQ(lanes[i]->open(), epochs[i] == top) << epochs[i];
      if (epochs[i] <= highest) {
        EXPECT_FALSE(lanes[i]->ack) << epochs[i];
      }
      if (lanes[i]->reject) {
        EXPECT_EQ(lanes[i]->reject->code, Code::kStaleEpoch);
        EXPECT_GE(lanes[i]->reject->epoch_seen.value, epochs[i]);
      }
    }
    highest = top;
  }
}

// Numbers are the initiator's for good: nobody may use them up in its name.
TEST_F(AcceptorTest, AnEpochFarAboveTheLastIsRefused) {
  const DialledPtr first = control(1);
  ASSERT_TRUE(answer(first));
  ASSERT_TRUE(first->ack);
  const DialledPtr stranger = control(1ULL << 63U);
  ASSERT_TRUE(answer(stranger));
  ASSERT_TRUE(stranger->reject);
  EXPECT_EQ(stranger->reject->code, Code::kStaleEpoch);
  EXPECT_EQ(stranger->reject->epoch_seen, Epoch(1));
  EXPECT_TRUE(first->open());
  const DialledPtr near = control(1 + (1ULL << 32U));
  ASSERT_TRUE(answer(near));
  EXPECT_TRUE(near->ack);
  const DialledPtr told = control(2 + (1ULL << 32U));  // as its initiator goes on, once refused
  ASSERT_TRUE(answer(told));
  EXPECT_TRUE(told->ack);
}

TEST_F(AcceptorTest, TheOldLanesEndBeforeTheNewEpochIsAnswered) {
  for (std::uint64_t moment = 0; moment < 40; moment += 3) {
    std::ranges::fill(memory_, std::byte{0});
    const std::uint64_t epoch = moment * 2 + 1;
    const DialledPtr first = control(epoch);
    ASSERT_TRUE(answer(first));
    const DialledPtr lane = data(epoch, first->ack->token);
    ASSERT_TRUE(answer(lane));
    lane->lane->post(chunk(1, memory_.size()));
    lane->lane->flush();
    world_.run_for(std::chrono::milliseconds(moment));
    const DialledPtr second = control(epoch + 1);
    ASSERT_TRUE(answer(second));
    ASSERT_TRUE(second->ack.has_value());
    const std::vector<std::byte> then = memory_;
    world_.run_for(1s);
    EXPECT_TRUE(memory_ == then) << moment;
    EXPECT_TRUE(first->down && lane->down);
  }
}

TEST_F(AcceptorTest, DataLanesNeedTheTokenOfTheOpenEpoch) {
  const DialledPtr first = control(1);
  ASSERT_TRUE(answer(first));
  wire::Token wrong = *first->ack->token;
  wrong[15] ^= std::byte{1};
  const auto expect_refused = [&](const DialledPtr& lane) {
    ASSERT_TRUE(answer(lane));
    ASSERT_TRUE(lane->reject.has_value());
    EXPECT_EQ(lane->reject->code, Code::kStaleEpoch);
  };
  expect_refused(data(1, wrong));
  expect_refused(data(2, first->ack->token));
  const DialledPtr joined = data(1, first->ack->token);
  ASSERT_TRUE(answer(joined));
  EXPECT_TRUE(joined->open());
  const DialledPtr second = control(2);
  ASSERT_TRUE(answer(second));
  EXPECT_NE(second->ack->token, first->ack->token);
  expect_refused(data(1, first->ack->token));
  expect_refused(data(2, first->ack->token));
  wire::Hello other = hello(wire::LaneKind::kData, 2);
  other.incarnation = Incarnation(0xCC);
  other.token = second->ack->token;
  expect_refused(dial(other));
}

TEST_F(AcceptorTest, AnEpochDiesAsAWhole) {
  const DialledPtr first = control(1);
  ASSERT_TRUE(answer(first));
  const DialledPtr a = data(1, first->ack->token);
  const DialledPtr b = data(1, first->ack->token);
  ASSERT_TRUE(answer(a) && answer(b));
  a->lane->close();
  ASSERT_TRUE(world_.run_until([&] { return first->down && b->down; }, 1s));
  EXPECT_EQ(acceptor_.lanes(), 0U);
}

TEST_F(AcceptorTest, AProbeNeverFencesAndTouchesOnlyItsScratch) {
  const DialledPtr first = control(1);
  ASSERT_TRUE(answer(first));
  const DialledPtr lane = data(1, first->ack->token);
  ASSERT_TRUE(answer(lane));
  std::vector<DialledPtr> probes;
  for (int i = 0; i < 10; ++i) {
    probes.push_back(dial(hello(wire::LaneKind::kProbe)));
    ASSERT_TRUE(answer(probes.back()));
    ASSERT_TRUE(probes.back()->ack && probes.back()->ack->scratch);
    probes.back()->lane->post(chunk(1, 64));
    probes.back()->lane->flush();
    ASSERT_TRUE(world_.run_until([&] { return !probes.back()->done.empty(); }, 1s));
    EXPECT_EQ(probes.back()->done[0].code, Code::kPermissionDenied);
  }
  EXPECT_TRUE(first->open() && lane->open());
  EXPECT_EQ(memory_[0], std::byte{0});
  lane->lane->post(chunk(2, 64));
  lane->lane->flush();
  ASSERT_TRUE(world_.run_until([&] { return !lane->done.empty(); }, 1s));
  EXPECT_EQ(lane->done[0].code, Code::kOk);
  EXPECT_EQ(memory_[0], std::byte{1});
}

TEST_F(AcceptorTest, TheControlLaneOfAnEpochCarriesNoData) {
  const DialledPtr first = control(1);
  ASSERT_TRUE(answer(first));
  first->lane->post(chunk(1, 64));
  first->lane->flush();
  ASSERT_TRUE(world_.run_until([&] { return !first->done.empty(); }, 1s));
  EXPECT_EQ(first->done[0].code, Code::kPermissionDenied);
}

TEST_F(AcceptorTest, RefusalsSayWhyAndWhoIsThere) {
  const auto refused = [&](const wire::Hello& hello) {
    const DialledPtr lane = dial(hello);
    EXPECT_TRUE(answer(lane));
    EXPECT_TRUE(lane->reject.has_value());
    EXPECT_EQ(lane->reject->incarnation, self_.incarnation);
    return lane->reject->code;
  };
  wire::Hello version = hello(wire::LaneKind::kControl, 1);
  version.version_min = version.version_max = 9;
  EXPECT_EQ(refused(version), Code::kVersionMismatch);
  wire::Hello auth = hello(wire::LaneKind::kControl, 1);
  auth.auth.scheme = 1;
  EXPECT_EQ(refused(auth), Code::kAuthFailed);
  for (const auto kind : {wire::LaneKind::kControl, wire::LaneKind::kProbe}) {
    wire::Hello target = hello(kind, kind == wire::LaneKind::kControl ? 1 : 0);
    target.target_incarnation = Incarnation(0xDEAD);
    EXPECT_EQ(refused(target), Code::kPeerRestarted);
  }
  acceptor_.stop_accepting();
  EXPECT_EQ(refused(hello(wire::LaneKind::kControl, 1)), Code::kShuttingDown);
  EXPECT_EQ(refused(hello(wire::LaneKind::kProbe)), Code::kShuttingDown);
}

TEST_F(AcceptorTest, ControlMessagesAreHandedOnOnceAndInOrder) {
  const DialledPtr first = control(1);
  ASSERT_TRUE(answer(first));
  const auto send = [&](const DialledPtr& lane, std::uint64_t seq, const std::string& text) {
    lane->lane->send_control(seq, wire::encode_control(wire::Upper{1, text}));
    lane->lane->flush();
    world_.run_for(10ms);
  };
  send(first, 1, "a");
  send(first, 1, "a");
  send(first, 2, "b");
  send(first, 0, "unreliable");
  EXPECT_EQ(events_.upper, (std::vector<std::string>{"a", "b", "unreliable"}));
  EXPECT_EQ(first->control_acks, (std::vector<std::uint64_t>{1, 1, 2}));
  const DialledPtr second = control(2);
  ASSERT_TRUE(answer(second));
  EXPECT_EQ(second->ack->control_seq, 2U);
  send(second, 2, "b");
  send(second, 4, "d");  // one is missing: it would be lost for good
  EXPECT_TRUE(second->down);
  EXPECT_EQ(events_.upper.size(), 3U);
}

TEST_F(AcceptorTest, LanesOfAPeerAndProbesAreBounded) {
  const DialledPtr first = control(1);
  ASSERT_TRUE(answer(first));
  std::vector<DialledPtr> lanes;
  for (std::size_t i = 0; i <= config::kMaxInboundLanesPerPeer; ++i) {
    lanes.push_back(data(1, first->ack->token));
    ASSERT_TRUE(answer(lanes.back()));
  }
  ASSERT_TRUE(lanes.back()->reject.has_value());
  EXPECT_EQ(lanes.back()->reject->code, Code::kResourceExhausted);
  EXPECT_TRUE(first->open() && lanes.front()->open());
  for (std::size_t i = 0; i <= config::kMaxInboundProbeLanesPerHost; ++i) {
    lanes.push_back(dial(hello(wire::LaneKind::kProbe)));
    ASSERT_TRUE(answer(lanes.back()));
  }
  ASSERT_TRUE(lanes.back()->reject.has_value());
  EXPECT_EQ(lanes.back()->reject->code, Code::kResourceExhausted);
  // However many incarnations it makes up, one host doesn't keep the others from being answered.
  Side other(world_.add_host("10.0.0.3").start_process("other"));
  auto elsewhere = std::make_unique<Dialled>();
  wire::Hello theirs = hello(wire::LaneKind::kProbe);
  theirs.session_id = "10.0.0.3:7000";
  elsewhere->lane = std::move(*other.transport.connect(kTarget, theirs, elsewhere.get()));
  ASSERT_TRUE(answer(elsewhere));
  EXPECT_TRUE(elsewhere->ack.has_value());
  // A place that became free is given again.
  lanes[lanes.size() - 2].reset();
  world_.run_for(10ms);
  lanes.push_back(dial(hello(wire::LaneKind::kProbe)));
  ASSERT_TRUE(answer(lanes.back()));
  EXPECT_TRUE(lanes.back()->ack.has_value());
  lanes.clear();
  elsewhere.reset();
  ASSERT_TRUE(world_.run_until([&] { return acceptor_.lanes() == 0; }, 90s));
}

// R6: the process behind a proxy is swapped, also back to one that was there before.
TEST_F(AcceptorTest, ASessionFollowsWhoeverAnswersAlsoBackToAnOldProcess) {
  Self own;
  own.incarnation = Incarnation(0xAA);
  own.session_id = "10.0.0.1:7000";
  health::HealthOptions options;
  struct Seen final : SessionEvents {
    std::vector<Incarnation> incarnations;
    void on_peer_incarnation(const std::string&, Incarnation, Incarnation now) override {
      incarnations.push_back(now);
    }
  } seen;
  SessionTable table({here_.process.loop(), here_.random, here_.transport, own, options, seen});
  Session* session = *table.find_or_create(kTarget);
  for (const std::uint64_t who : {0xBB, 0xCC, 0xBB, 0xCC, 0xDD, 0xBB}) {
    self_.incarnation = Incarnation(who);
    acceptor_.close_all();  // the proxy drops its connections
    ASSERT_TRUE(world_.run_until(
        [&] { return session->incarnation() == self_.incarnation && session->info().lanes > 0; },
        1200ms))
        << std::hex << who << " " << session->info().state << " " << session->info().last_error;
    EXPECT_EQ(seen.incarnations.back(), self_.incarnation);
    world_.run_for(2s);
  }
  table.retire_all();
  world_.run_for(1ms);
}

// A round-robin proxy: every connection meets another process.
TEST_F(AcceptorTest, ProcessesThatTakeTurnsDontMakeASessionDialWithoutEnd) {
  Self own;
  own.incarnation = Incarnation(0xAA);
  own.session_id = "10.0.0.1:7000";
  health::HealthOptions options;
  SessionEvents ignored;
  SessionTable table({here_.process.loop(), here_.random, here_.transport, own, options, ignored});
  static_cast<void>(table.find_or_create(kTarget));
  int hellos = 0;
  const Time end = world_.now() + 10s;
  while (world_.now() < end && world_.step()) {
    if (events_.hellos == hellos) continue;
    hellos = events_.hellos;
    self_.incarnation = Incarnation(self_.incarnation.value + 1);
  }
  EXPECT_LT(hellos, 100);
  table.retire_all();
  world_.run_for(1ms);
}

}  // namespace
}  // namespace kvmend::session
