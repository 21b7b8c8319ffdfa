// What a chunk's plan costs once the layouts are known: page numbers in, pieces out. The target for
// 2,048 pages x 64 layers of equal layouts is 1 ms.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "base/check.h"
#include "kv/layout.h"
#include "kv/plan.h"

namespace kvmend::kv {
namespace {

constexpr std::uint32_t kPoolPages = 16'384;
constexpr std::uint32_t kLayers = 64;

enum Order : std::int64_t { kContiguous = 0, kScattered = 1 };

std::vector<std::uint32_t> pages(std::uint32_t count, std::int64_t order, unsigned seed) {
  std::vector<std::uint32_t> out(kPoolPages);
  std::iota(out.begin(), out.end(), 0U);
  std::mt19937_64 random(seed);
  if (order == kScattered) std::ranges::shuffle(out, random);
  out.resize(count);
  return out;
}

/// One buffer per layer, or K and V. Nothing is read: the addresses are made up.
KvLayout layout(std::uint32_t buffers_per_layer, std::uint32_t tp_rank, std::uint32_t tp_size,
                std::uint32_t page_tokens) {
  constexpr std::uint32_t kHeads = 8;
  constexpr std::uint64_t kHeadBytes = 256;
  KvLayout out{.page_tokens = page_tokens,
               .kv_heads = kHeads / tp_size,
               .head_dim = 128,
               .rank = {.tp_rank = tp_rank, .tp_size = tp_size}};
  KvComponent& kv = out.components.emplace_back();
  kv.items = kPoolPages;
  const std::uint64_t item = std::uint64_t{page_tokens} * (kHeads / tp_size) * kHeadBytes;
  for (std::uint32_t i = 0; i < kLayers * buffers_per_layer; ++i)
    kv.buffers.push_back({reinterpret_cast<void*>((i + 1ULL) << 34), item});
  return out;
}

wire::KvLayout remote(const KvLayout& of) {
  std::vector<std::vector<BufferPlace>> places(1);
  for (std::uint32_t i = 0; i < of.components[0].buffers.size(); ++i)
    places[0].push_back({{i, 1}, 0});
  return describe(of, places);
}

void run(benchmark::State& state, const TransferPlan& plan, std::uint32_t count,
         std::int64_t order) {
  const auto source = pages(count, order, 1);
  const auto destination = pages(count, order, order == kScattered ? 2 : 1);
  const ChunkPages chunk{.source = source, .destination = destination, .total = count};
  std::size_t made = 0;
  for (auto _ : state) {
    // As a room does it: memory for the pieces is new for every chunk.
    std::vector<transport::Piece> pieces;
    const auto runs = plan.runs(0, chunk);
    pieces.reserve(plan.amount(0, runs).pieces);
    plan.append(0, runs, pieces);
    benchmark::DoNotOptimize(pieces.data());
    made = pieces.size();
  }
  state.counters["pieces"] = static_cast<double>(made);
}

// arg 0: pages; arg 1: buffers per layer; arg 2: order.
void BM_EqualLayouts(benchmark::State& state) {
  const auto here = layout(static_cast<std::uint32_t>(state.range(1)), 0, 1, 64);
  const auto plan = TransferPlan::prepare(here, remote(here));
  KVM_CHECK(plan.has_value());
  run(state, *plan, static_cast<std::uint32_t>(state.range(0)), state.range(2));
}
BENCHMARK(BM_EqualLayouts)
    ->ArgNames({"pages", "per_layer", "scattered"})
    ->Args({2'048, 1, kScattered})
    ->Args({2'048, 2, kScattered})
    ->Args({2'048, 1, kContiguous})
    ->Args({16, 1, kScattered})
    ->Unit(benchmark::kMicrosecond);

// Prefill tp 1 -> decode tp 4: a strip per token.
void BM_HeadSlices(benchmark::State& state) {
  const auto plan = TransferPlan::prepare(layout(2, 0, 1, 16), remote(layout(2, 1, 4, 16)));
  KVM_CHECK(plan.has_value());
  run(state, *plan, static_cast<std::uint32_t>(state.range(0)), kScattered);
}
BENCHMARK(BM_HeadSlices)->ArgName("pages")->Arg(64)->Unit(benchmark::kMicrosecond);

// What the cache of plans saves: once per pair of ranks.
void BM_Prepare(benchmark::State& state) {
  const auto here = layout(2, 0, 1, 64);
  const auto there = remote(here);
  for (auto _ : state) KVM_CHECK(TransferPlan::prepare(here, there).has_value());
}
BENCHMARK(BM_Prepare)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace kvmend::kv

BENCHMARK_MAIN();
