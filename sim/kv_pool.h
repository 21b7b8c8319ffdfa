// How the simulated processes lay out their KV pools: layers of K and V, one aux pool, one state
// pool.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kvmend/kv.h"
#include "sim/pool.h"

namespace kvmend::sim {

struct PoolPart {
  std::size_t items;
  std::size_t item_bytes;
  std::size_t buffers;
};

/// By component: KV, aux, state.
inline constexpr std::array<PoolPart, 3> kPoolParts{PoolPart{24, 320, 4}, PoolPart{12, 48, 1},
                                                    PoolPart{12, 96, 1}};

[[nodiscard]] constexpr std::size_t buffer_begin(std::size_t component, std::size_t buffer) {
  std::size_t at = 0;
  for (std::size_t c = 0; c < component; ++c)
    at += kPoolParts[c].items * kPoolParts[c].item_bytes * kPoolParts[c].buffers;
  return at + buffer * kPoolParts[component].items * kPoolParts[component].item_bytes;
}

[[nodiscard]] constexpr std::size_t kv_pool_bytes() {
  return buffer_begin(kPoolParts.size() - 1, kPoolParts.back().buffers);
}

/// The layout of a pool in that memory.
[[nodiscard]] inline KvLayout make_layout(Pool& pool) {
  KvLayout layout{.page_tokens = 16, .kv_heads = 2, .head_dim = 8};
  constexpr std::array kinds{KvPool::kKv, KvPool::kAux, KvPool::kMamba};
  for (std::size_t c = 0; c < kPoolParts.size(); ++c) {
    KvComponent component{.pool = kinds[c], .dtype = "bfloat16", .items = kPoolParts[c].items};
    for (std::size_t b = 0; b < kPoolParts[c].buffers; ++b)
      component.buffers.push_back({pool.base() + buffer_begin(c, b), kPoolParts[c].item_bytes});
    layout.components.push_back(std::move(component));
  }
  return layout;
}

/// The segments of `pages` of a component; `seed(buffer, position)` gives each its pattern.
template <class Seed>
void add_segments(std::vector<Segment>& to, std::size_t component,
                  const std::vector<std::uint32_t>& pages, Seed&& seed) {
  const PoolPart& part = kPoolParts[component];
  for (std::size_t b = 0; b < part.buffers; ++b)
    for (std::size_t i = 0; i < pages.size(); ++i)
      to.push_back(
          {buffer_begin(component, b) + pages[i] * part.item_bytes, part.item_bytes, seed(b, i)});
}

}  // namespace kvmend::sim
