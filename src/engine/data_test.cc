// Bytes between engines: every size, both directions, byte for byte.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "engine/sim_engines.h"
#include "transport/tcp/tcp_transport.h"

namespace kvmend::engine {
namespace {

using namespace std::chrono_literals;
using transport::tcp::make_tcp_transport;

class Data : public testing::TestWithParam<std::uint64_t> {};

// Places of random lengths in both pools that don't overlap, in random order.
std::vector<std::pair<std::size_t, std::size_t>> random_places(env::sim::SimRandom& random,
                                                               std::size_t pool,
                                                               std::vector<std::size_t>& lengths) {
  std::size_t used = 0;
  while (true) {
    const std::size_t most = random.below(10) == 0 ? 300'000 : random.below(3) == 0 ? 5'000 : 40;
    const std::size_t length = 1 + random.below(most);
    if (used + length > pool) break;
    lengths.push_back(length);
    used += length;
  }
  std::vector<std::size_t> order(lengths.size());
  std::iota(order.begin(), order.end(), 0U);
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  std::vector<std::pair<std::size_t, std::size_t>> places(lengths.size());
  std::size_t from = 0;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    places[i].first = from;
    from += lengths[i];
  }
  std::size_t to = 0;
  for (const std::size_t i : order) {
    places[i].second = to;
    to += lengths[i];
  }
  return places;
}

TEST_P(Data, RandomSlicesArriveByteForByte) {
  const std::uint64_t seed = GetParam();
  env::sim::SimRandom random(seed * 7919 + 1);
  env::sim::SimOptions world;
  world.short_io_probability = random.below(2) == 0 ? 0.9 : 0.1;
  world.send_buffer_bytes = world.receive_buffer_bytes = 1'000 + random.below(200'000);
  SimEngines engines(make_tcp_transport, seed, world);
  engines.options().chunk_bytes = static_cast<std::uint32_t>(4'096 + random.below(600'000));
  engines.options().window_bytes = engines.options().chunk_bytes * (1 + random.below(8));
  engines.options().tcp.data_lanes = static_cast<int>(1 + random.below(4));
  constexpr std::size_t kPool = 2U << 20;
  SimEngine& a = engines.add(kPool);
  SimEngine& b = engines.add(kPool);
  a.fill(1);
  b.fill(2);
  const std::vector<std::byte> before_a = a.pool();
  const std::vector<std::byte> before_b = b.pool();
  std::vector<std::size_t> lengths;
  const auto places = random_places(random, kPool / 2, lengths);
  // Writes from the first half of a into the second of b, reads of b's first half into a's second.
  std::vector<Slice> writes;
  std::vector<Slice> reads;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    writes.push_back({a.at(places[i].first), b.address(kPool / 2 + places[i].second), lengths[i]});
    reads.push_back({a.at(kPool / 2 + places[i].second), b.address(places[i].first), lengths[i]});
  }
  const FlightPlan plan{.checksum = random.below(2) == 0, .urgent = random.below(4) == 0};
  const FlightPtr write = a.submit(b, Opcode::kWrite, writes, plan);
  const FlightPtr read = a.submit(b, Opcode::kRead, reads, plan);
  ASSERT_TRUE(engines.finish({write, read}));
  ASSERT_TRUE(write->ok()) << write->text();
  ASSERT_TRUE(read->ok()) << read->text();
  std::vector<std::byte> want_a = before_a;
  std::vector<std::byte> want_b = before_b;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const auto copy = [&](const std::vector<std::byte>& from, std::vector<std::byte>& to) {
      std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(places[i].first), lengths[i],
                  to.begin() + static_cast<std::ptrdiff_t>(kPool / 2 + places[i].second));
    };
    copy(before_a, want_b);
    copy(before_b, want_a);
  }
  EXPECT_TRUE(a.pool() == want_a);
  EXPECT_TRUE(b.pool() == want_b);
}

INSTANTIATE_TEST_SUITE_P(Seeds, Data, testing::Range<std::uint64_t>(0, 12));

TEST(DataTest, AMillionSlicesInOneBatch) {
  SimEngines engines(make_tcp_transport, 3, {.short_io_probability = 0.01});
  constexpr std::size_t kSlices = 1'000'000;
  SimEngine& a = engines.add(kSlices * 2);
  SimEngine& b = engines.add(kSlices * 2);
  a.fill(1);
  std::vector<Slice> slices;
  slices.reserve(kSlices);
  for (std::size_t i = 0; i < kSlices; ++i)  // no two are contiguous on both sides
    slices.push_back({a.at(i * 2), b.address((kSlices - 1 - i) * 2), 2});
  const FlightPtr flight = a.submit(b, Opcode::kWrite, slices);
  ASSERT_TRUE(engines.finish({flight}));
  ASSERT_TRUE(flight->ok()) << flight->text();
  for (std::size_t i = 0; i < kSlices; ++i)
    ASSERT_EQ(std::memcmp(a.at(i * 2), b.at((kSlices - 1 - i) * 2), 2), 0) << i;
}

// The lanes of an epoch go at their own speeds. What is left of a cancelled write must not land
// after a newer write to the same place that has been acknowledged.
TEST_P(Data, TheRestOfACancelledWriteNeverLandsAfterANewerOne) {
  const std::uint64_t seed = GetParam();
  env::sim::SimRandom random(seed + 77);
  env::sim::SimOptions world;
  world.send_buffer_bytes = 2'000 + random.below(60'000);
  world.receive_buffer_bytes = 2'000 + random.below(60'000);
  world.short_io_probability = 0.3;
  SimEngines engines(make_tcp_transport, seed, world);
  engines.options().chunk_bytes = 64U << 10;
  engines.options().tcp.data_lanes = static_cast<int>(2 + random.below(4));
  SimEngine& a = engines.add(1U << 20);
  SimEngine& b = engines.add(1U << 20);
  a.fill(1);
  // A lost packet holds up its own lane only.
  engines.world().network().set_fault(
      SimEngines::ip(0), SimEngines::ip(1),
      {.extra_jitter = std::chrono::microseconds(random.below(500)), .drop_probability = 0.03});
  for (int round = 0; round < 10; ++round) {
    // The old one: chunks on several lanes, all over the pool. The new one: some of its places.
    const FlightPtr old =
        a.submit(b, Opcode::kWrite, {{a.at(0), b.address(0), 1U << 20}}, {.checksum = false});
    engines.run_for(std::chrono::microseconds(random.below(3'000)));
    a.cancel(old);
    std::vector<FlightPtr> newer;
    for (std::size_t at = random.below(64U << 10); at + 4'096 <= (1U << 20);
         at += 32'768 + random.below(64U << 10))
      newer.push_back(a.submit(b, Opcode::kWrite, {{a.at(at), b.address(at), 4'096}}));
    ASSERT_TRUE(engines.finish(newer));
    const auto expect_intact = [&](const char* when) {
      for (const FlightPtr& flight : newer) {
        ASSERT_TRUE(flight->ok()) << flight->text();
        for (const transport::Piece& piece : flight->state->pieces) {
          const auto offset = static_cast<std::size_t>(piece.local - a.at(0));
          ASSERT_EQ(std::memcmp(a.at(offset), b.at(offset), piece.length), 0)
              << "round " << round << " " << when;
        }
      }
    };
    expect_intact("when acknowledged");
    engines.run_for(3s);
    expect_intact("later");
  }
}

TEST(DataTest, TinyBuffersAndTrafficBothWaysDontDeadlock) {
  SimEngines engines(make_tcp_transport, 4,
                     {.send_buffer_bytes = 1'000, .receive_buffer_bytes = 1'000});
  engines.options().chunk_bytes = 64U << 10;
  SimEngine& a = engines.add(1U << 20);
  SimEngine& b = engines.add(1U << 20);
  std::vector<FlightPtr> flights;
  for (std::size_t i = 0; i < 16; ++i) {
    const std::size_t from = i * (16U << 10);
    const std::size_t to = (512U << 10) + from;
    for (SimEngine* me : {&a, &b}) {
      SimEngine& other = me == &a ? b : a;
      flights.push_back(
          me->submit(other, Opcode::kWrite, {{me->at(from), other.address(to), 16U << 10}}));
      flights.push_back(
          me->submit(other, Opcode::kRead, {{me->at(to), other.address(from), 16U << 10}}));
    }
  }
  ASSERT_TRUE(engines.finish(flights));
  for (const FlightPtr& flight : flights) EXPECT_TRUE(flight->ok()) << flight->text();
}

TEST(DataTest, ThousandsOfReadsWaitForTheirTurn) {
  SimEngines engines(make_tcp_transport, 5, {.send_buffer_bytes = 4'000});
  SimEngine& a = engines.add(1U << 20);
  SimEngine& b = engines.add(1U << 20);
  b.fill(2);
  std::vector<FlightPtr> flights;
  for (std::size_t i = 0; i < 4'096; ++i)
    flights.push_back(a.submit(b, Opcode::kRead, {{a.at(i * 256), b.address(i * 256), 256}}));
  ASSERT_TRUE(engines.finish(flights));
  EXPECT_TRUE(a.pool() == b.pool());
}

// I5
TEST(DataTest, I5_AFlippedBitNeverBecomesASuccess) {
  std::uint64_t resent = 0;
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    SimEngines engines(make_tcp_transport, seed);
    engines.options().chunk_bytes = 16U << 10;
    SimEngine& a = engines.add();
    SimEngine& b = engines.add();
    a.fill(1);
    std::vector<FlightPtr> flights{a.submit(b, Opcode::kWrite, {{a.at(0), b.address(0), 8}})};
    ASSERT_TRUE(engines.finish(flights));
    engines.world().network().set_fault_between(SimEngines::ip(0), SimEngines::ip(1),
                                                {.corrupt_probability = 0.1});
    constexpr std::size_t kEach = 64U << 10;
    for (std::size_t i = 0; i < 8; ++i) {
      const Opcode opcode = i % 2 == 0 ? Opcode::kWrite : Opcode::kRead;
      SimEngine& source = opcode == Opcode::kWrite ? a : b;
      for (std::size_t k = 0; k < kEach; k += 8)
        store_le<std::uint64_t>(source.at(i * kEach + k), seed + i * k);
      flights.push_back(a.submit(b, opcode, {{a.at(i * kEach), b.address(i * kEach), kEach}},
                                 {.checksum = true}));
    }
    ASSERT_TRUE(engines.finish(flights, 120s)) << "seed " << seed;
    for (std::size_t i = 0; i < 8; ++i) {
      if (!flights[i + 1]->ok()) continue;
      EXPECT_EQ(std::memcmp(a.at(i * kEach), b.at(i * kEach), kEach), 0) << "seed " << seed;
    }
    resent += a.core().stats().retries;
  }
  EXPECT_GT(resent, 0U);
}

TEST(DataTest, UrgentOvertakesBulk) {
  SimEngines engines(make_tcp_transport, 6, {.bytes_per_second = 10e6});
  SimEngine& a = engines.add(8U << 20);
  SimEngine& b = engines.add(8U << 20);
  const FlightPtr bulk = a.submit(b, Opcode::kWrite, {{a.at(4096), b.address(4096), 7U << 20}});
  engines.run_for(20ms);
  ASSERT_FALSE(bulk->done());
  const FlightPtr urgent =
      a.submit(b, Opcode::kWrite, {{a.at(0), b.address(0), 4096}}, {.urgent = true});
  ASSERT_TRUE(engines.finish({bulk, urgent}));
  ASSERT_TRUE(bulk->ok() && urgent->ok());
  // It waits for the frame that was started and for what the sockets hold, not for the bulk.
  EXPECT_LT(urgent->ended_at, bulk->ended_at - 400ms);
}

TEST(DataTest, ANotificationComesAfterItsData) {
  SimEngines engines(make_tcp_transport, 7);
  SimEngine& a = engines.add();
  SimEngine& b = engines.add();
  a.fill(1);
  const FlightPtr flight = a.submit(b, Opcode::kWrite, {{a.at(0), b.address(0), 1U << 20}},
                                    {.notify = Notification{"pages", "of room 5"}});
  std::vector<Notification> got;
  ASSERT_TRUE(engines.run_until(
      [&] {
        got = b.core().take_notifications();
        return !got.empty();
      },
      10s));
  EXPECT_TRUE(a.pool() == b.pool());
  EXPECT_EQ(got[0].name, "pages");
  EXPECT_EQ(got[0].message, "of room 5");
  ASSERT_TRUE(engines.finish({flight}));
  EXPECT_TRUE(flight->ok()) << flight->text();
}

TEST(DataTest, ANotificationWithoutData) {
  SimEngines engines(make_tcp_transport, 8);
  SimEngine& a = engines.add();
  SimEngine& b = engines.add();
  const FlightPtr flight =
      a.submit(b, Opcode::kWrite, {}, {.deadline = 5s, .notify = Notification{"hi", ""}});
  ASSERT_TRUE(engines.finish({flight}));
  EXPECT_TRUE(flight->ok()) << flight->text();
  EXPECT_EQ(b.core().take_notifications().size(), 1U);
}

// The acknowledgement of a notification is lost with its connection: told once, and known as told.
TEST(DataTest, ANotificationIsDeliveredOnceThroughResets) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SimEngines engines(make_tcp_transport, seed);
    SimEngine& a = engines.add();
    SimEngine& b = engines.add();
    const FlightPtr first = a.submit(b, Opcode::kWrite, {{a.at(0), b.address(0), 100}});
    ASSERT_TRUE(engines.finish({first}));
    const FlightPtr flight = a.submit(b, Opcode::kWrite, {{a.at(0), b.address(0), 100}},
                                      {.notify = Notification{"n", "m"}});
    engines.run_for(std::chrono::microseconds(10 * seed));
    engines.world().network().reset_connections(SimEngines::ip(0), SimEngines::ip(1));
    ASSERT_TRUE(engines.finish({flight}, 5s)) << "seed " << seed;
    EXPECT_TRUE(flight->ok()) << flight->text() << " seed " << seed;
    EXPECT_EQ(b.core().take_notifications().size(), 1U) << "seed " << seed;
  }
}

}  // namespace
}  // namespace kvmend::engine
