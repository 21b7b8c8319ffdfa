// For unit tests only: pools, and a prefill and a decode manager over fake engines.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "kv/fake_engine.h"
#include "kv/link.h"
#include "kvmend/kv.h"

namespace kvmend::kv {

inline constexpr const char* kPrefillAt = "10.0.0.1:7001";
inline constexpr const char* kDecodeAt = "10.0.0.2:7001";
inline constexpr const char* kOtherAt = "10.0.0.3:7001";
inline constexpr RoomId kRoom{(std::uint64_t{1} << 63) - 5};  // all 63 bits count

/// The pools of one rank: 2 layers of K and V, an aux pool, a mamba pool.
struct Pools {
  static constexpr std::uint32_t kPages = 32;
  static constexpr std::uint32_t kRows = 8;
  static constexpr std::uint64_t kPageBytes = 96;

  explicit Pools(int seed, std::uint64_t page_bytes = kPageBytes, const KvRank& rank = {}) {
    page_bytes /= rank.tp_size;
    KvComponent kv{.pool = KvPool::kKv, .dtype = "bfloat16", .items = kPages};
    for (std::uint32_t layer = 0; layer < 2; ++layer)
      for (int half = 0; half < 2; ++half) {
        kv.buffers.push_back({add(kPages * page_bytes, seed), page_bytes});
        kv.layer_ids.push_back(layer);
      }
    KvComponent aux{.pool = KvPool::kAux, .dtype = "uint8", .items = kRows};
    aux.buffers = {{add(kRows * 16ULL, seed), 16}, {add(kRows * 40ULL, seed), 40}};
    KvComponent mamba{.pool = KvPool::kMamba, .dtype = "float32", .items = kRows};
    mamba.buffers = {{add(kRows * 64ULL, seed), 64}};
    layout = {.page_tokens = 16,
              .kv_heads = 2 / rank.tp_size,
              .head_dim = 8,
              .rank = rank,
              .components = {kv, aux, mamba}};
  }

  std::byte* add(std::size_t bytes, int seed) {
    memory.push_back(std::make_unique<std::vector<std::byte>>(bytes));
    for (std::size_t i = 0; i < bytes; ++i)
      (*memory.back())[i] =
          static_cast<std::byte>(i * 7 + memory.size() * 31 + static_cast<std::size_t>(seed) * 101);
    return memory.back()->data();
  }
  [[nodiscard]] std::vector<std::vector<std::byte>> snapshot() const {
    std::vector<std::vector<std::byte>> out;
    for (const auto& one : memory) out.push_back(*one);
    return out;
  }
  [[nodiscard]] Bytes page(std::size_t component, std::size_t buffer, std::uint32_t index) const {
    const KvBuffer& from = layout.components[component].buffers[buffer];
    return {static_cast<const std::byte*>(from.base) + index * from.item_len, from.item_len};
  }

  std::vector<std::unique_ptr<std::vector<std::byte>>> memory;
  KvLayout layout;
};

/// An engine with a manager on it.
struct Node {
  Node(FakeNet& net, const std::string& at, KvRole role, int seed, KvOptions options = {},
       std::uint64_t page_bytes = Pools::kPageBytes, const KvRank& rank = {})
      : pools(seed, page_bytes, rank), engine(net.start(at)) {
    manager = open(net, role, options);
  }
  std::unique_ptr<KvManager> open(FakeNet& net, KvRole role, KvOptions options) {
    auto link = Link::open(net.port(engine), role, pools.layout, options);
    EXPECT_TRUE(link.has_value()) << link.error().to_string();
    return std::make_unique<KvManager>(std::move(*link));
  }

  Pools pools;
  FakeEngine& engine;
  std::unique_ptr<KvManager> manager;
};

class Cluster : public ::testing::Test {
 protected:
  FakeNet net;
  KvOptions options{.room_deadline = std::chrono::seconds{60}};
  std::unique_ptr<Node> prefill = std::make_unique<Node>(net, kPrefillAt, KvRole::kPrefill, 1);
  std::unique_ptr<Node> decode = std::make_unique<Node>(net, kDecodeAt, KvRole::kDecode, 2);
  const std::vector<std::uint32_t> source{3, 4, 5, 9, 1};
  const std::vector<std::uint32_t> target{7, 8, 2, 20, 21};
  static constexpr std::uint32_t kSourceRow = 1;
  static constexpr std::uint32_t kTargetRow = 6;

  /// Prefill becomes two tensor ranks with one head each: both write into every room.
  void split_prefill() {
    const auto rank = [&](const char* at, std::uint32_t tp_rank) {
      return std::make_unique<Node>(net, at, KvRole::kPrefill, 1, options, Pools::kPageBytes,
                                    KvRank{.tp_rank = tp_rank, .tp_size = 2});
    };
    prefill.reset();
    prefill = rank(kPrefillAt, 0);
    second_prefill = rank(kOtherAt, 1);
    net.loop.settle();
  }
  std::unique_ptr<Node> second_prefill;

  /// Everything of a room in one go, up to what decode and prefill call.
  void announce(KvReceiver& receiver) {
    receiver.init();
    ASSERT_TRUE(receiver.send_metadata(target, kTargetRow, {{2}}).is_ok());
  }
  void send_all(KvSender& sender) {
    ASSERT_TRUE(sender.init(static_cast<std::uint32_t>(source.size()), kSourceRow).is_ok());
    ASSERT_TRUE(sender.send(std::span(source).first(2)).is_ok());
    ASSERT_TRUE(sender.send(std::span(source).subspan(2), {{5}}).is_ok());
  }
  void expect_landed() {
    for (std::size_t i = 0; i < source.size(); ++i)
      for (std::size_t buffer = 0; buffer < 4; ++buffer)
        expect_same(0, buffer, source[i], target[i]);
    for (std::size_t buffer = 0; buffer < 2; ++buffer)
      expect_same(1, buffer, kSourceRow, kTargetRow);
    expect_same(2, 0, 5, 2);
  }
  void expect_same(std::size_t component, std::size_t buffer, std::uint32_t from,
                   std::uint32_t to) {
    const Bytes here = prefill->pools.page(component, buffer, from);
    const Bytes there = decode->pools.page(component, buffer, to);
    EXPECT_EQ(std::memcmp(here.data(), there.data(), here.size()), 0)
        << component << "/" << buffer << " page " << from << " -> " << to;
  }
  /// No room, grant, write or announcement is left.
  void expect_clean() {
    for (Node* node : {prefill.get(), second_prefill.get(), decode.get()}) {
      if (!node || !node->manager) continue;
      EXPECT_EQ(node->manager->stats().rooms, 0U) << node->engine.session_id;
      EXPECT_EQ(node->manager->stats().announced, 0U);
      EXPECT_EQ(node->manager->stats().transfers, 0U);
      EXPECT_EQ(node->engine.grants.size(), 0U);
      EXPECT_EQ(node->engine.running.size(), 0U);
    }
  }
  static std::string why(const Status& status) { return status.to_string(); }
};

}  // namespace kvmend::kv
