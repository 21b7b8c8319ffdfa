#include "kv_pool.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace kvmend::bench {

void stop_bench(const std::string& what) {
  std::fprintf(stderr, "kv_bench: %s\n", what.c_str());
  std::_Exit(1);
}

std::unique_ptr<Engine> bench_engine(bool local, std::uint64_t pace) {
  EngineOptions options;
  options.local = local ? LocalMode::kAuto : LocalMode::kOff;
  options.tcp.pacing_bytes_per_second = pace;
  auto engine = Engine::create(options);
  if (!engine) stop_bench(engine.error().to_string());
  return std::move(*engine);
}

BenchPool::BenchPool(const KvShape& shape, Engine& engine)
    : shape_(shape),
      items_(shape.pages * shape.concurrency),
      memory_(std::make_unique<Buffer>(std::size_t{items_} * shape.buffers * shape.item_bytes +
                                           std::size_t{shape.concurrency} * kAuxBytes,
                                       PageMemory::kHuge)) {
  const Status status = engine.register_memory(memory_->data(), memory_->size());
  if (!status.is_ok()) stop_bench(status.to_string());
}

std::byte* BenchPool::page(std::uint32_t buffer, std::uint32_t page) const {
  return memory_->data() + (std::size_t{buffer} * items_ + page) * shape_.item_bytes;
}

KvLayout BenchPool::layout() const {
  KvComponent kv{.pool = KvPool::kKv, .dtype = "bfloat16", .items = items_};
  for (std::uint32_t b = 0; b < shape_.buffers; ++b) {
    kv.buffers.push_back({page(b, 0), shape_.item_bytes});
    kv.layer_ids.push_back(b / 2);
  }
  KvComponent aux{.pool = KvPool::kAux, .dtype = "uint8", .items = shape_.concurrency};
  aux.buffers = {{page(shape_.buffers, 0), kAuxBytes}};
  return {.page_tokens = 16, .kv_heads = 8, .head_dim = 128, .components = {kv, aux}};
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

void BenchPool::fill(const std::vector<std::uint32_t>& pages, std::uint64_t seed) {
  for (std::uint32_t b = 0; b < shape_.buffers; ++b)
    for (std::size_t i = 0; i < pages.size(); ++i) {
      const std::uint64_t first = word(seed, b, i);
      for (std::uint32_t at = 0; at < shape_.item_bytes; at += 8) {
        const std::uint64_t value = first + at;
        std::memcpy(page(b, pages[i]) + at, &value, 8);
      }
    }
}

void BenchPool::wipe(const std::vector<std::uint32_t>& pages) {
  for (std::uint32_t b = 0; b < shape_.buffers; ++b)
    for (const std::uint32_t one : pages) std::memset(page(b, one), 0xC5, shape_.item_bytes);
}

bool BenchPool::holds(const std::vector<std::uint32_t>& pages, std::uint64_t seed) const {
  for (std::uint32_t b = 0; b < shape_.buffers; ++b)
    for (std::size_t i = 0; i < pages.size(); ++i) {
      const std::uint64_t first = word(seed, b, i);
      for (std::uint32_t at = 0; at < shape_.item_bytes; at += 8) {
        std::uint64_t value = 0;
        std::memcpy(&value, page(b, pages[i]) + at, 8);
        if (value != first + at) return false;
      }
    }
  return true;
}

}  // namespace kvmend::bench
