#include "kv_pool.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace kvmend::bench {

void stop_bench(const std::string& what) {
  std::fprintf(stderr, "kv_bench: %s\n", what.c_str());
  std::_Exit(1);
}

std::unique_ptr<Engine> bench_engine(bool local, std::uint64_t pace, std::uint64_t stage_below) {
  EngineOptions options;
  options.local = local ? LocalMode::kAuto : LocalMode::kOff;
  options.tcp.pacing_bytes_per_second = pace;
  options.tcp.stage_below_bytes = stage_below;
  auto engine = Engine::create(options);
  if (!engine) stop_bench(engine.error().to_string());
  return std::move(*engine);
}

BenchPool::BenchPool(const KvShape& shape, Engine& engine, KvRole role)
    : shape_(shape),
      whole_heads_(shape.decode_ranks > 0 && role == KvRole::kPrefill),
      page_bytes_(shape.item_bytes * (whole_heads_ ? shape.decode_ranks : 1)),
      items_(shape.pages * shape.concurrency),
      memory_(std::make_unique<Buffer>(std::size_t{items_} * shape.buffers * page_bytes_ +
                                           std::size_t{shape.concurrency} * kAuxBytes,
                                       PageMemory::kHuge)) {
  const Status status = engine.register_memory(memory_->data(), memory_->size());
  if (!status.is_ok()) stop_bench(status.to_string());
}

std::byte* BenchPool::page(std::uint32_t buffer, std::uint32_t page) const {
  return memory_->data() + (std::size_t{buffer} * items_ + page) * page_bytes_;
}

KvLayout BenchPool::layout() const {
  KvComponent kv{.pool = KvPool::kKv, .dtype = "bfloat16", .items = items_};
  for (std::uint32_t b = 0; b < shape_.buffers; ++b) {
    kv.buffers.push_back({page(b, 0), page_bytes_});
    kv.layer_ids.push_back(b / 2);
  }
  KvComponent aux{.pool = KvPool::kAux, .dtype = "uint8", .items = shape_.concurrency};
  aux.buffers = {{page(shape_.buffers, 0), kAuxBytes}};
  KvLayout layout{.page_tokens = kTokens, .kv_heads = 8, .head_dim = 128, .components = {kv, aux}};
  if (shape_.decode_ranks > 0) {
    layout.total_kv_heads = shape_.decode_ranks;
    layout.kv_heads = whole_heads_ ? shape_.decode_ranks : 1;
    if (!whole_heads_) layout.rank.tp_size = shape_.decode_ranks;
  }
  return layout;
}

std::vector<std::uint32_t> BenchPool::pages_of(std::uint32_t slot, std::uint64_t side) const {
  const std::vector<std::uint32_t> order = random_order(items_, side);
  const auto first = order.begin() + static_cast<std::ptrdiff_t>(std::size_t{slot} * shape_.pages);
  return {first, first + shape_.pages};
}

std::uint64_t BenchPool::word(std::uint64_t seed, std::uint32_t buffer,
                              std::size_t position) const {
  std::uint64_t mix = (seed + 1) * 0x9E3779B97F4A7C15ULL;
  mix ^= (std::uint64_t{buffer} << 32U | position) * 0xC2B2AE3D27D4EB4FULL;
  return mix ^ (mix >> 29U);
}

template <class Word>
void BenchPool::each_word(std::uint32_t buffer, std::uint32_t index, const Word& word) const {
  const std::uint32_t token = shape_.item_bytes / kTokens;  // bytes of decode's heads
  const std::size_t step = whole_heads_ ? std::size_t{token} * shape_.decode_ranks : token;
  std::byte* base = page(buffer, index);
  if (shape_.decode_ranks == 0) {
    for (std::uint32_t at = 0; at < shape_.item_bytes; at += 8) word(base + at, at);
    return;
  }
  for (std::uint32_t t = 0; t < kTokens; ++t)
    for (std::uint32_t at = 0; at < token; at += 8) word(base + t * step + at, t * token + at);
}

void BenchPool::fill(const std::vector<std::uint32_t>& pages, std::uint64_t seed) {
  for (std::uint32_t b = 0; b < shape_.buffers; ++b)
    for (std::size_t i = 0; i < pages.size(); ++i)
      each_word(b, pages[i], [first = word(seed, b, i)](std::byte* to, std::uint32_t at) {
        const std::uint64_t value = first + at;
        std::memcpy(to, &value, 8);
      });
}

void BenchPool::wipe(const std::vector<std::uint32_t>& pages) {
  for (std::uint32_t b = 0; b < shape_.buffers; ++b)
    for (const std::uint32_t one : pages) std::memset(page(b, one), 0xC5, page_bytes_);
}

bool BenchPool::holds(const std::vector<std::uint32_t>& pages, std::uint64_t seed) const {
  bool all = true;
  for (std::uint32_t b = 0; b < shape_.buffers; ++b)
    for (std::size_t i = 0; i < pages.size(); ++i)
      each_word(b, pages[i],
                [&, first = word(seed, b, i)](const std::byte* from, std::uint32_t at) {
                  std::uint64_t value = 0;
                  std::memcpy(&value, from, 8);
                  all = all && value == first + at;
                });
  return all;
}

}  // namespace kvmend::bench
