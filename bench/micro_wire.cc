// What the receiver does for each slice before bytes may land: check and parse the frame, resolve
// the slices against a grant. The budget at 4 GB/s in 4 KiB pages is 1 us a slice for everything.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "base/check.h"
#include "memory/grant_table.h"
#include "wire/frame.h"
#include "wire/kv_messages.h"

namespace kvmend {
namespace {

using memory::GrantTable;
using memory::RegionTable;

constexpr std::uint64_t kPageBytes = 4096;
constexpr std::uint32_t kPoolPages = 16'384;
constexpr std::uint32_t kRoomPages = 2'048;
constexpr Incarnation kWriter{7};

enum Order : std::int64_t { kSequential = 0, kShuffled = 1 };

// A pool of `layers` buffers and one room whose pages are scattered over it. Nothing is written:
// the addresses are made up.
struct Pool {
  RegionTable regions;
  GrantTable grants{regions, 99};
  GrantId grant;
  std::vector<RegionRef> buffers;
  std::vector<std::uint32_t> pages;

  Pool(std::size_t layers, bool scattered) {
    std::mt19937_64 random(1);
    std::vector<std::uint32_t> pool(kPoolPages);
    std::iota(pool.begin(), pool.end(), 0U);
    if (scattered) std::ranges::shuffle(pool, random);
    pages.assign(pool.begin(), pool.begin() + kRoomPages);
    memory::GrantComponent component;
    for (std::size_t i = 0; i < layers; ++i) {
      const auto base = (i + 1) << 32;
      buffers.push_back(*regions.add(reinterpret_cast<void*>(base), kPoolPages * kPageBytes,
                                     MemoryKind::kHost, Access::kReadWrite));
      component.buffers.push_back({.region = buffers.back(), .item_bytes = kPageBytes});
    }
    component.pages = pages;
    std::ranges::sort(component.pages);
    grant = *grants.issue({.writer = kWriter, .components = {component}});
    // Other rooms, so that the table isn't tiny.
    for (int i = 0; i < 255; ++i)
      KVM_CHECK(grants.issue({.writer = kWriter, .components = {component}}).has_value());
  }

  // One frame for `count` pages of each layer in turn, as a sender goes through a room.
  [[nodiscard]] std::vector<std::byte> frame(std::uint32_t count, GrantId id) const {
    std::vector<wire::WireSlice> slices;
    for (std::uint32_t i = 0; i < count; ++i)
      slices.push_back({buffers[i / 64 % buffers.size()], pages[i] * kPageBytes, kPageBytes});
    std::vector<std::byte> out;
    wire::append_data_frame(out, wire::FrameType::kWrite, 0, ChunkId{1}, {.grant = id}, slices,
                            static_cast<std::uint32_t>(count * kPageBytes));
    return out;
  }
};

void report(benchmark::State& state, std::uint32_t slices) {
  const auto all = static_cast<double>(state.iterations()) * slices;
  state.counters["per_slice"] =
      benchmark::Counter(all, benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
  state.SetBytesProcessed(static_cast<std::int64_t>(all) * static_cast<std::int64_t>(kPageBytes));
}

// arg 0: slices; arg 1: whether the room's pages are scattered; arg 2: whether by the standing
// grant.
void BM_ParseAndResolve(benchmark::State& state) {
  Pool pool(160, state.range(1) != 0);
  const auto count = static_cast<std::uint32_t>(state.range(0));
  const auto frame = pool.frame(count, state.range(2) != 0 ? memory::kStandingGrant : pool.grant);
  std::vector<wire::WireSlice> slices;
  std::vector<iovec> where;
  for (auto _ : state) {
    const Bytes bytes(frame);
    const auto header = wire::parse_header(bytes.first(wire::kHeaderBytes));
    const Bytes body = bytes.subspan(wire::kHeaderBytes);
    KVM_CHECK(header && wire::check_matches(bytes.first(wire::kHeaderBytes), body));
    const auto data = wire::parse_data_body(*header, body, slices);
    KVM_CHECK(data.has_value());
    KVM_CHECK(pool.grants.resolve(data->grant, Access::kRemoteWrite, kWriter, slices, Time{}, where)
                  .is_ok());
    benchmark::DoNotOptimize(where.data());
  }
  report(state, count);
}
BENCHMARK(BM_ParseAndResolve)
    ->ArgNames({"slices", "scattered", "standing"})
    ->Args({128, 0, 0})
    ->Args({128, 1, 0})
    ->Args({1000, 1, 0})
    ->Args({128, 1, 1});

void BM_ParseOnly(benchmark::State& state) {
  const Pool pool(160, true);
  const auto frame = pool.frame(128, pool.grant);
  std::vector<wire::WireSlice> slices;
  for (auto _ : state) {
    const Bytes bytes(frame);
    const auto header = wire::parse_header(bytes.first(wire::kHeaderBytes));
    const Bytes body = bytes.subspan(wire::kHeaderBytes);
    KVM_CHECK(header && wire::check_matches(bytes.first(wire::kHeaderBytes), body));
    KVM_CHECK(wire::parse_data_body(*header, body, slices).has_value());
    benchmark::DoNotOptimize(slices.data());
  }
  report(state, 128);
}
BENCHMARK(BM_ParseOnly);

void BM_StillAllowed(benchmark::State& state) {
  const Pool pool(160, true);
  for (auto _ : state)
    benchmark::DoNotOptimize(
        pool.grants.still_allowed(pool.grant, Time{}, pool.regions.removals()));
}
BENCHMARK(BM_StillAllowed);

// The receiver's cost of one more room.
void BM_IssueAndEnd(benchmark::State& state) {
  Pool pool(160, true);
  const memory::Grant grant = *pool.grants.find(pool.grant);
  for (auto _ : state)
    KVM_CHECK(pool.grants.end(*pool.grants.issue(grant), memory::GrantEnd::kCompleted));
}
BENCHMARK(BM_IssueAndEnd);

void BM_ParseRoomMetadata(benchmark::State& state) {
  wire::KvPages pages{.component = 0, .pages = std::vector<std::uint32_t>(kRoomPages, 5)};
  const std::string encoded = wire::encode_kv(
      wire::KvRoomMetadata{.room = RoomId{1}, .grant = GrantId{9}, .pages = {pages}});
  for (auto _ : state) {
    const auto parsed = wire::parse_kv(std::as_bytes(std::span(encoded)));
    KVM_CHECK(parsed.has_value());
    benchmark::DoNotOptimize(&*parsed);
  }
}
BENCHMARK(BM_ParseRoomMetadata);

}  // namespace
}  // namespace kvmend

BENCHMARK_MAIN();
