// Case O1: what a room's metrics say against what the test sees for itself, over real engines in a
// simulated world whose links have a known delay and rate. Every figure within 5 %.
#include <gmock/gmock.h>

#include "engine/sim_engines.h"
#include "kv/core_port.h"
#include "kv/link.h"
#include "kvmend/kv.h"
#include "transport/tcp/tcp_transport.h"

namespace kvmend::kv {
namespace {

using namespace std::chrono_literals;
using engine::SimEngine;
using engine::SimEngines;
using ::testing::HasSubstr;

constexpr Duration kOneWay = 10ms;
constexpr double kRate = 20e6;  // bytes per second
constexpr std::uint64_t kPageBytes = 64U << 10;
constexpr std::uint32_t kPages = 256;
constexpr std::uint64_t kPoolBytes = kPageBytes * kPages;
constexpr std::uint64_t kFrame = 64U << 10;

void expect_close(double reported, double truth, const char* what) {
  EXPECT_NEAR(reported, truth, 0.05 * truth) << what;
}
void expect_close(Duration reported, Duration truth, const char* what) {
  expect_close(to_seconds(reported), to_seconds(truth), what);
}

class RequestMetrics : public ::testing::Test {
 protected:
  RequestMetrics()
      : engines(transport::tcp::make_tcp_transport, 1,
                {.delay = kOneWay,
                 .jitter = {},
                 .bytes_per_second = kRate,
                 .send_buffer_bytes = 1U << 20,
                 .receive_buffer_bytes = 1U << 20,
                 .short_io_probability = 0}) {
    engines.options().chunk_bytes = kFrame;
    prefill = &engines.add(kPoolBytes);
    decode = &engines.add(kPoolBytes);
    prefill->fill(3);
    prefill_manager = open(*prefill, KvRole::kPrefill);
    decode_manager = open(*decode, KvRole::kDecode);
    run(RoomId(1), 1);  // connections and layouts are known from here on
  }
  ~RequestMetrics() override {
    prefill_manager->teardown();
    decode_manager->teardown();
  }

  static std::unique_ptr<KvManager> open(SimEngine& engine, KvRole role) {
    KvLayout layout{.page_tokens = 16,
                    .components = {{.items = kPages, .buffers = {{engine.at(0), kPageBytes}}}}};
    auto link = Link::open(std::make_unique<CorePort>(engine.core()), role, layout, {});
    EXPECT_TRUE(link.has_value()) << link.error().to_string();
    return std::make_unique<KvManager>(std::move(*link));
  }
  [[nodiscard]] Time now() { return engines.world().now(); }
  void run_for(Duration time) { engines.run_for(time); }
  /// Until the status is at least that; when it came.
  template <class End>
  Time until(const End& end, KvStatus status) {
    EXPECT_TRUE(
        engines.run_until([&] { return end.poll() >= status || is_terminal(end.poll()); }, 120s));
    EXPECT_GE(end.poll(), status) << end.failure().to_string();
    return now();
  }
  static std::vector<std::uint32_t> first(std::uint32_t pages) {
    std::vector<std::uint32_t> out(pages);
    std::iota(out.begin(), out.end(), 0U);
    return out;
  }
  void run(RoomId room, std::uint32_t pages) {
    KvReceiver receiver(*decode_manager, prefill->core().session_id(), room);
    ASSERT_TRUE(receiver.send_metadata(first(pages)).is_ok());
    KvSender sender(*prefill_manager, room);
    ASSERT_TRUE(sender.init(pages).is_ok());
    ASSERT_TRUE(sender.send(first(pages)).is_ok());
    until(sender, KvStatus::kSuccess);
  }
  /// When the byte there has come over.
  Time until_landed(std::uint64_t offset) {
    EXPECT_TRUE(
        engines.run_until([&] { return *decode->at(offset) == *prefill->at(offset); }, 120s));
    return now();
  }
  /// Pages from the front that have come over whole.
  [[nodiscard]] std::uint64_t landed_pages() {
    std::uint64_t pages = 0;
    while (pages < kPages && std::memcmp(decode->at(pages * kPageBytes),
                                         prefill->at(pages * kPageBytes), kPageBytes) == 0)
      ++pages;
    return pages;
  }
  void forget_landed() { std::ranges::fill(decode->pool(), std::byte{0}); }
  [[nodiscard]] std::uint64_t sent_bytes() { return prefill->core().stats().bytes_sent; }

  SimEngines engines;
  SimEngine* prefill = nullptr;
  SimEngine* decode = nullptr;
  std::unique_ptr<KvManager> prefill_manager;
  std::unique_ptr<KvManager> decode_manager;
};

TEST_F(RequestMetrics, O1_BytesWaitAndLatencyOverAKnownLink) {
  constexpr std::uint32_t kSent = 200;
  constexpr std::uint64_t kBytes = kSent * kPageBytes;
  forget_landed();
  const Time created = now();
  KvSender sender(*prefill_manager, RoomId(2));
  ASSERT_TRUE(sender.init(kSent).is_ok());
  run_for(300ms);
  const Time asked = now();
  KvReceiver receiver(*decode_manager, prefill->core().session_id(), RoomId(2));
  ASSERT_TRUE(receiver.send_metadata(first(kSent)).is_ok());
  const Time known = until(sender, KvStatus::kWaitingForInput);
  expect_close(known - asked, kOneWay, "the link is what it should be");
  run_for(500ms);
  const Time sent = now();
  ASSERT_TRUE(sender.send(first(kSent)).is_ok());
  const Time begun = until_landed(0);
  const Time landed = until_landed(kBytes - 1);
  expect_close(to_seconds(landed - begun), kBytes / kRate, "the link is what it should be");
  const Time complete = until(receiver, KvStatus::kSuccess);
  const Time confirmed = until(sender, KvStatus::kSuccess);
  run_for(60s);

  const KvRoomMetrics out = sender.metrics();
  const KvRoomMetrics in = receiver.metrics();
  EXPECT_EQ(out.bytes, kBytes);
  EXPECT_EQ(in.bytes, kBytes);
  EXPECT_EQ(out.chunks, 1U);
  EXPECT_EQ(out.retries, 0U);
  EXPECT_EQ(out.reason, "");
  expect_close(out.bootstrapping, known - created, "sender: until the metadata came");
  expect_close(out.waiting, sent - known, "sender: until the first byte left");
  expect_close(out.transferring, confirmed - sent, "sender: until decode's word");
  expect_close(in.waiting, begun - asked, "receiver: until the first byte came");
  expect_close(in.transferring, complete - begun, "receiver: until all were there");
}

// A session that is blacklisted when the pages are sent: waiting isn't moving.
TEST_F(RequestMetrics, O1_ARoomThatIsParkedWaits) {
  constexpr std::uint32_t kSent = 60;  // more of the pool may not wait
  KvReceiver receiver(*decode_manager, prefill->core().session_id(), RoomId(2));
  ASSERT_TRUE(receiver.send_metadata(first(kSent)).is_ok());
  KvSender sender(*prefill_manager, RoomId(2));
  ASSERT_TRUE(sender.init(kSent).is_ok());
  const Time known = until(sender, KvStatus::kWaitingForInput);
  forget_landed();
  engines.world().network().partition(SimEngines::ip(0), SimEngines::ip(1));
  ASSERT_TRUE(engines.run_until([&] { return prefill->state(*decode) == "failed"; }, 30s));
  ASSERT_TRUE(sender.send(first(kSent)).is_ok());
  run_for(5s);
  EXPECT_EQ(sender.poll(), KvStatus::kWaitingForInput);
  engines.world().network().clear_all_faults();
  const Time begun = until_landed(0);
  const Time complete = until(receiver, KvStatus::kSuccess);
  const Time confirmed = until(sender, KvStatus::kSuccess);
  const KvRoomMetrics out = sender.metrics();
  const KvRoomMetrics in = receiver.metrics();
  EXPECT_EQ(out.bytes, kSent * kPageBytes);
  EXPECT_EQ(out.retries, 0U) << "nothing of it had left before";
  expect_close(out.waiting, begun - kOneWay - known, "sender");
  expect_close(out.transferring, confirmed - begun + kOneWay, "sender");
  expect_close(in.transferring, complete - begun, "receiver");
}

// The connections break in the middle: every frame that leaves a second time is a retry, and none
// that had not left before.
TEST_F(RequestMetrics, O1_RetriesAreTheFramesThatLeftTwice) {
  constexpr std::uint64_t kBytes = kPages * kPageBytes;
  const std::uint64_t before = sent_bytes();
  KvReceiver receiver(*decode_manager, prefill->core().session_id(), RoomId(2));
  ASSERT_TRUE(receiver.send_metadata(first(kPages)).is_ok());
  KvSender sender(*prefill_manager, RoomId(2));
  ASSERT_TRUE(sender.init(kPages).is_ok());
  ASSERT_TRUE(sender.send(first(kPages)).is_ok());
  until(sender, KvStatus::kTransferring);
  run_for(200ms);
  ASSERT_GT(engines.world().network().reset_connections(SimEngines::ip(0), SimEngines::ip(1)), 0U);
  until(sender, KvStatus::kSuccess);
  const std::uint64_t twice = sent_bytes() - before - kBytes;
  ASSERT_GT(twice, 0U);
  const KvRoomMetrics out = sender.metrics();
  EXPECT_EQ(out.bytes, kBytes);
  EXPECT_EQ(receiver.metrics().bytes, kBytes);
  // The frame that was cut left in part.
  EXPECT_EQ(out.retries, (twice + kFrame - 1) / kFrame);
}

// A room that fails halfway has moved what has landed, on both sides.
TEST_F(RequestMetrics, O1_AFailedRoomCountsWhatItMoved) {
  for (const bool by_decode : {true, false}) {
    forget_landed();
    const RoomId room(by_decode ? 2 : 3);
    KvReceiver receiver(*decode_manager, prefill->core().session_id(), room);
    ASSERT_TRUE(receiver.send_metadata(first(kPages)).is_ok());
    KvSender sender(*prefill_manager, room);
    ASSERT_TRUE(sender.init(kPages).is_ok());
    ASSERT_TRUE(sender.send(first(kPages)).is_ok());
    until(sender, KvStatus::kTransferring);
    run_for(400ms);
    const auto then = static_cast<double>(landed_pages() * kPageBytes);
    const Duration transferring = sender.metrics().transferring;
    if (by_decode) {
      receiver.abort("client went away");
    } else {
      sender.abort("client went away");
    }
    ASSERT_TRUE(engines.run_until(
        [&] { return is_terminal(sender.poll()) && is_terminal(receiver.poll()); }, 10s));
    const std::uint64_t moved = landed_pages();
    ASSERT_GT(moved, 50U);
    const KvRoomMetrics out = sender.metrics();
    const KvRoomMetrics in = receiver.metrics();
    expect_close(static_cast<double>(in.bytes), static_cast<double>(moved * kPageBytes), "in");
    // What landed within the last way back wasn't acknowledged here yet.
    const double unheard = kRate * to_seconds(kOneWay) + kFrame;
    EXPECT_GE(static_cast<double>(out.bytes), then - unheard);
    EXPECT_LE(static_cast<double>(out.bytes), then + (by_decode ? unheard : 0));
    EXPECT_THAT(out.reason, HasSubstr("client went away"));
    EXPECT_THAT(in.reason, HasSubstr("client went away"));
    expect_close(out.transferring, transferring + (by_decode ? kOneWay : Duration{}), "until then");
  }
}

// A room that ran out of time, with its link cut.
TEST_F(RequestMetrics, O1_ADeadlineIsAReasonWithFigures) {
  forget_landed();
  KvReceiver receiver(*decode_manager, prefill->core().session_id(), RoomId(2));
  const Time created = now();
  ASSERT_TRUE(receiver.send_metadata(first(kPages)).is_ok());
  KvSender sender(*prefill_manager, RoomId(2));
  ASSERT_TRUE(sender.init(kPages).is_ok());
  ASSERT_TRUE(sender.send(first(kPages)).is_ok());
  until(sender, KvStatus::kTransferring);
  const Time begun = until_landed(0);
  run_for(400ms);
  engines.world().network().partition(SimEngines::ip(0), SimEngines::ip(1));
  ASSERT_TRUE(engines.run_until(
      [&] { return is_terminal(sender.poll()) && is_terminal(receiver.poll()); }, 120s));
  const KvRoomMetrics in = receiver.metrics();
  expect_close(static_cast<double>(in.bytes), static_cast<double>(landed_pages() * kPageBytes),
               "bytes");
  expect_close(in.waiting + in.transferring, 60s, "the room's deadline");
  expect_close(in.transferring, created + 60s - begun, "since the first byte");
  EXPECT_THAT(in.reason, HasSubstr("ran out of time"));
  EXPECT_THAT(sender.metrics().reason, HasSubstr("ran out of time"));
}

}  // namespace
}  // namespace kvmend::kv
