// The plan against a naive model that moves byte by byte.
#include "kv/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>

#include "kv/layout.h"

namespace kvmend::kv {
namespace {

using ::testing::HasSubstr;

/// A random pair of equal layouts over plain memory, regions named by slot.
struct World {
  KvLayout here;
  wire::KvLayout there;
  std::vector<std::vector<std::byte>> source;
  std::vector<std::vector<std::byte>> target;  // by region slot
};

World make_world() {
  World world;
  world.here.page_tokens = 16;
  std::vector<std::vector<BufferPlace>> places;
  KvLayout destination = world.here;
  const auto pools = *rc::gen::inRange(1, 4);
  std::vector<std::pair<std::size_t, std::size_t>> owner;
  for (int c = 0; c < pools; ++c) {
    KvComponent from{.pool = static_cast<KvPool>(c),
                     .items = *rc::gen::inRange<std::uint64_t>(1, 40)};
    KvComponent to = from;
    to.items = *rc::gen::inRange<std::uint64_t>(1, 40);
    auto& row = places.emplace_back();
    const auto buffers = *rc::gen::inRange(1, 5);
    for (int b = 0; b < buffers; ++b) {
      const auto item = *rc::gen::inRange<std::uint64_t>(1, 33);
      const auto offset = *rc::gen::inRange<std::uint64_t>(0, 20);
      world.source.emplace_back(from.items * item);
      for (std::size_t i = 0; i < world.source.back().size(); ++i)
        world.source.back()[i] = static_cast<std::byte>(*rc::gen::inRange(0, 256));
      world.target.emplace_back(offset + to.items * item + 3);
      from.buffers.push_back({nullptr, item});
      to.buffers.push_back({nullptr, item});
      row.push_back({{static_cast<std::uint32_t>(world.target.size() - 1), 1}, offset});
    }
    world.here.components.push_back(from);
    destination.components.push_back(to);
  }
  std::size_t next = 0;
  for (KvComponent& component : world.here.components)
    for (KvBuffer& buffer : component.buffers) buffer.base = world.source[next++].data();
  world.there = describe(destination, places);
  return world;
}

std::vector<std::uint32_t> random_pages(std::uint64_t items, std::size_t count) {
  // Runs and jumps, so that merging has something to do.
  std::vector<std::uint32_t> all(items);
  std::iota(all.begin(), all.end(), 0U);
  const auto turn = *rc::gen::inRange<std::uint64_t>(0, items);
  std::ranges::rotate(all, all.begin() + static_cast<std::ptrdiff_t>(turn));
  const auto swaps = *rc::gen::inRange(0, 4);
  for (int i = 0; i < swaps; ++i)
    std::swap(all[*rc::gen::inRange<std::uint64_t>(0, items)],
              all[*rc::gen::inRange<std::uint64_t>(0, items)]);
  all.resize(count);
  return all;
}

RC_GTEST_PROP(Plan, MovesEveryByteOnceAndTouchesNothingElse, ()) {
  World world = make_world();
  const auto plan = TransferPlan::prepare(world.here, world.there);
  RC_ASSERT(plan.has_value());
  std::vector<std::vector<int>> written;
  for (const auto& region : world.target) written.emplace_back(region.size());
  auto expected = world.target;
  std::vector<transport::Piece> pieces;
  std::size_t counted = 0;
  std::uint64_t bytes = 0;
  for (std::uint32_t c = 0; c < world.here.components.size(); ++c) {
    const KvComponent& from = world.here.components[c];
    const wire::KvComponent& to = world.there.components[c];
    const auto count = *rc::gen::inRange<std::size_t>(0, std::min(from.items, to.items) + 1);
    const auto source = random_pages(from.items, count);
    const auto target = random_pages(to.items, count);
    const auto runs = merge_runs(source, target);
    counted += plan->piece_count(c, runs);
    bytes += count * plan->components()[c].bytes_per_page;
    plan->append(c, runs, pieces);
    for (std::size_t b = 0; b < from.buffers.size(); ++b)
      for (std::size_t i = 0; i < count; ++i)
        for (std::uint64_t at = 0; at < from.buffers[b].item_len; ++at) {
          const std::uint64_t base = to.base_offset.empty() ? 0 : to.base_offset[b];
          expected[to.regions[b].slot][base + target[i] * item_len(to, b) + at] =
              static_cast<std::byte*>(
                  from.buffers[b].base)[source[i] * from.buffers[b].item_len + at];
        }
  }
  RC_ASSERT(pieces.size() == counted);
  for (const transport::Piece& piece : pieces) {
    RC_ASSERT(piece.length > 0U);
    std::memcpy(world.target[piece.region.slot].data() + piece.offset, piece.local, piece.length);
    for (std::uint64_t i = 0; i < piece.length; ++i)
      RC_ASSERT(++written[piece.region.slot][piece.offset + i] == 1);
    bytes -= piece.length;
  }
  RC_ASSERT(bytes == 0U);
  RC_ASSERT(world.target == expected);
}

TEST(Plan, JoinsOnlyWhatFollowsOnBothSides) {
  const std::vector<std::uint32_t> source{3, 4, 5, 6, 9, 10};
  const std::vector<std::uint32_t> target{7, 8, 2, 3, 4, 5};
  EXPECT_EQ(merge_runs(source, target), (std::vector<PageRun>{{3, 7, 2}, {5, 2, 2}, {9, 4, 2}}));
  EXPECT_TRUE(merge_runs({}, {}).empty());
}

// Case S1: metadata is O(runs), not O(pages).
TEST(Plan, S1_ContiguousPagesAreOnePiecePerBuffer) {
  std::byte memory{};
  KvLayout here{
      .page_tokens = 64,
      .components = {{.items = 20'000, .buffers = {{&memory, 65'536}, {&memory, 4'096}}}}};
  const wire::KvLayout there =
      describe(here, std::vector<std::vector<BufferPlace>>{{{{1, 1}, 0}, {{2, 1}, 128}}});
  const auto plan = TransferPlan::prepare(here, there);
  ASSERT_TRUE(plan.has_value());
  std::vector<std::uint32_t> pages(15'000);
  std::iota(pages.begin(), pages.end(), 5'000U);
  std::vector<transport::Piece> pieces;
  plan->append(0, merge_runs(pages, pages), pieces);
  ASSERT_EQ(pieces.size(), 2U);
  EXPECT_EQ(pieces[0].length, 15'000ULL * 65'536);
  EXPECT_EQ(pieces[1].offset, 128U + 5'000ULL * 4'096);
}

// The shape that head slices of unequal tensor parallelism have.
TEST(Plan, MovesStripsWithinPages) {
  std::vector<std::byte> memory(4 * 64);
  const BufferMap map{.source = memory.data(),
                      .source_item = 64,
                      .region = {3, 1},
                      .destination = 1'000,
                      .destination_item = 128,
                      .length = 16,
                      .count = 2,
                      .source_step = 32,
                      .destination_step = 64};
  EXPECT_FALSE(map.whole_pages());
  const std::vector<PageRun> runs{{1, 5, 2}};
  std::vector<transport::Piece> pieces;
  append_pieces(map, runs, pieces);
  ASSERT_EQ(pieces.size(), 4U);
  const std::array<std::uint64_t, 4> from{64, 96, 128, 160};
  const std::array<std::uint64_t, 4> to{1'640, 1'704, 1'768, 1'832};
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    EXPECT_EQ(pieces[i].local, memory.data() + from[i]);
    EXPECT_EQ(pieces[i].offset, to[i]);
    EXPECT_EQ(pieces[i].length, 16U);
  }
}

// Case I6: refused with both sides' values.
TEST(Layout, I6_DifferencesAreNamedWithBothValues) {
  std::byte memory{};
  KvLayout here{.page_tokens = 64,
                .kv_heads = 8,
                .head_dim = 128,
                .components = {{.dtype = "bfloat16",
                                .items = 10,
                                .buffers = {{&memory, 4'096}, {&memory, 4'096}},
                                .layer_ids = {0, 1}}}};
  const std::vector<std::vector<BufferPlace>> places{{{{1, 1}, 0}, {{2, 1}, 0}}};
  const auto refusal = [&](auto change) {
    KvLayout other = here;
    change(other);
    const Status status = check_mappable(here, describe(other, places));
    EXPECT_EQ(status.code(), Code::kIncompatible);
    return status.detail();
  };
  EXPECT_TRUE(check_mappable(here, describe(here, places)).is_ok());
  EXPECT_THAT(refusal([](KvLayout& l) { l.page_tokens = 16; }),
              HasSubstr("page_tokens 64 here, 16 there"));
  EXPECT_THAT(refusal([](KvLayout& l) { l.kv_heads = 4; }), HasSubstr("kv_heads 8 here, 4 there"));
  EXPECT_THAT(refusal([](KvLayout& l) { l.components[0].dtype = "fp8"; }),
              HasSubstr("kv dtype bfloat16 here, fp8 there"));
  EXPECT_THAT(refusal([](KvLayout& l) { l.components[0].buffers[1].item_len = 8'192; }),
              HasSubstr("kv item_len of buffer 1 4096 here, 8192 there"));
  EXPECT_THAT(refusal([](KvLayout& l) { l.components[0].layer_ids = {0, 2}; }),
              HasSubstr("kv layer ids 0,1 here, 0,2 there"));
  EXPECT_THAT(refusal([](KvLayout& l) { l.rank = {.tp_rank = 1, .tp_size = 2}; }),
              HasSubstr("tp_size 1 here, 2 there"));
  EXPECT_THAT(refusal([](KvLayout& l) { l.element_order = "hnd"; }),
              HasSubstr("element_order nhd here, hnd there"));
}

TEST(Layout, RefusesWhatCantBe) {
  std::byte memory{};
  const KvLayout good{.page_tokens = 64,
                      .components = {{.items = 10, .buffers = {{&memory, 4'096}}}}};
  EXPECT_TRUE(check_layout(good).is_ok());
  const auto refusal = [&](auto change) {
    KvLayout bad = good;
    change(bad);
    const Status status = check_layout(bad);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    return status.detail();
  };
  EXPECT_THAT(refusal([](KvLayout& l) { l.components.clear(); }), HasSubstr("0 components"));
  EXPECT_THAT(refusal([](KvLayout& l) { l.page_tokens = 0; }), HasSubstr("page_tokens"));
  EXPECT_THAT(refusal([](KvLayout& l) { l.components.push_back(l.components[0]); }),
              HasSubstr("2 components of kind kv"));
  EXPECT_THAT(refusal([](KvLayout& l) { l.components[0].buffers[0].base = nullptr; }),
              HasSubstr("kv buffer 0 is null"));
  EXPECT_THAT(refusal([](KvLayout& l) { l.components[0].buffers[0].item_len = 1ULL << 60; }),
              HasSubstr("10 items of 1152921504606846976 bytes"));
  EXPECT_THAT(refusal([](KvLayout& l) { l.components[0].layer_ids = {1, 2}; }),
              HasSubstr("1 buffers but 2 layer ids"));
  EXPECT_THAT(refusal([](KvLayout& l) { l.rank.tp_rank = 1; }), HasSubstr("tp_rank 1 of 1"));
}

TEST(Layout, RefusesARemoteWhoseOffsetsOverflow) {
  wire::KvLayout there{.components = {{.regions = {{1, 1}},
                                       .item_len = {std::uint64_t{1} << 40},
                                       .items = std::uint64_t{1} << 40}}};
  EXPECT_EQ(check_remote(there).code(), Code::kProtocolError);
  there.components[0].items = 4;
  EXPECT_TRUE(check_remote(there).is_ok());
  there.components[0].base_offset = {~std::uint64_t{0}};
  EXPECT_EQ(check_remote(there).code(), Code::kProtocolError);
}

}  // namespace
}  // namespace kvmend::kv
