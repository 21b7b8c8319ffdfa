// The plan: single cases. plan_property_test.cc has the general one.
#include "kv/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "kv/layout.h"

namespace kvmend::kv {
namespace {

using ::testing::HasSubstr;

Status check_mappable(const KvLayout& here, const wire::KvLayout& there) {
  const auto plan = TransferPlan::prepare(here, there);
  return plan ? Status::ok() : plan.error();
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
  const ChunkPages chunk{.source = pages, .destination = pages, .total = 15'000};
  plan->append(0, plan->runs(0, chunk), pieces);
  ASSERT_EQ(pieces.size(), 2U);
  EXPECT_EQ(pieces[0].length, 15'000ULL * 65'536);
  EXPECT_EQ(pieces[1].offset, 128U + 5'000ULL * 4'096);
}

// The shape that head slices of unequal tensor parallelism have.
TEST(Plan, MovesStripsWithinPages) {
  std::vector<std::byte> memory(256);
  const BufferMap map{.source = memory.data(),
                      .source_item = 64,
                      .region = {3, 1},
                      .destination = 1'000,
                      .destination_item = 128,
                      .length = 16,
                      .rows = {.count = 2, .source = 32, .destination = 64}};
  EXPECT_FALSE(map.whole_pages());
  const std::vector<PageRun> runs{{1, 5, 2}};
  std::vector<transport::Piece> pieces;
  append_pieces(map, runs, {}, pieces);
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
  EXPECT_THAT(refusal([](KvLayout& l) { l.kv_heads = 4; }),
              HasSubstr("kv_heads of all ranks 8 here, 4 there"));
  EXPECT_THAT(refusal([](KvLayout& l) { l.components[0].dtype = "fp8"; }),
              HasSubstr("kv dtype bfloat16 here, fp8 there"));
  EXPECT_THAT(refusal([](KvLayout& l) { l.components[0].buffers[1].item_len = 8'192; }),
              HasSubstr("kv item_len of buffer 1 4096 (64 rows x 8 of 8 columns) here, 8192 (64 "
                        "rows x 8 of 8 columns) there"));
  EXPECT_THAT(refusal([](KvLayout& l) { l.components[0].layer_ids = {0, 2}; }),
              HasSubstr("kv layer ids 0,1 here, 0,2 there"));
  EXPECT_THAT(refusal([](KvLayout& l) { l.head_dim = 64; }),
              HasSubstr("head_dim 128 here, 64 there"));
  EXPECT_THAT(refusal([](KvLayout& l) { l.element_order = "opaque"; }),
              HasSubstr("element_order nhd here, opaque there"));
  EXPECT_THAT(refusal([](KvLayout& l) { l.rank = {.pp_rank = 1, .pp_size = 2}; }),
              HasSubstr("pp_size 1 here, 2 there"));
  KvLayout unnamed = here;  // as many buffers, the same stages: paired by position
  unnamed.components[0].layer_ids.clear();
  EXPECT_TRUE(check_mappable(here, describe(unnamed, places)).is_ok());
}

// Ranks that don't belong together, and layers that can't be told apart.
TEST(Layout, I6_RanksThatDontMeetAreRefused) {
  std::byte memory{};
  const auto layout = [&](std::uint32_t tp_rank, std::uint32_t tp_size) {
    return KvLayout{.page_tokens = 4,
                    .kv_heads = 12 / tp_size,
                    .head_dim = 2,
                    .rank = {.tp_rank = tp_rank, .tp_size = tp_size},
                    .components = {{.items = 10, .buffers = {{&memory, 4 * 12 / tp_size * 4ULL}}}}};
  };
  const auto refusal = [](const KvLayout& here, const KvLayout& there) {
    return check_mappable(here, describe(there, {})).detail();
  };
  EXPECT_THAT(refusal(layout(0, 3), layout(0, 2)), HasSubstr("tp_size 3 here, 2 there"));
  EXPECT_THAT(refusal(layout(1, 2), layout(1, 4)), HasSubstr("tp_rank 1 of 2 here, 1 of 4 there"));
  EXPECT_THAT(refusal(layout(1, 4), layout(1, 2)), HasSubstr("tp_rank 1 of 4 here, 1 of 2 there"));
  EXPECT_THAT(refusal(layout(1, 2), layout(2, 4)), testing::IsEmpty());
  KvLayout stage = layout(0, 1);
  stage.rank.pp_size = 2;
  EXPECT_THAT(refusal(stage, layout(0, 1)), HasSubstr("kv without layer ids: 0 of 2 stages here"));
  KvLayout newer = layout(0, 1);
  wire::KvLayout described = describe(newer, {});
  ++described.version;
  EXPECT_THAT(check_mappable(newer, described).detail(),
              HasSubstr("layout version 1 here, 2 there"));
  // Pages of unknown inside can't be taken apart.
  KvLayout dealt = layout(0, 1);
  dealt.kv_heads = 0;
  KvLayout to = dealt;
  to.rank.dcp_size = 2;
  EXPECT_THAT(refusal(dealt, to), HasSubstr("kv item_len of buffer 0 192 here, 192 there"));
}

// A serving system whose decode doesn't say how many heads it has: prefill's count, and the bytes
// must come to what the rank would hold (plan_property_test.cc: which byte goes where).
TEST(Layout, I6_DecodeMayLeaveTheHeadsToPrefill) {
  std::byte memory{};
  const auto layout = [&](std::uint32_t heads, std::uint32_t total, const KvRank& rank,
                          std::uint64_t bytes) {
    return KvLayout{.page_tokens = 4,
                    .kv_heads = heads,
                    .rank = rank,
                    .components = {{.items = 10, .buffers = {{&memory, bytes}}}},
                    .total_kv_heads = total};
  };
  const auto prefill = layout(1, 2, {.tp_rank = 1, .tp_size = 4}, 4 * 8);
  const auto refusal = [&](const KvLayout& there) {
    return check_mappable(prefill, describe(there, {})).detail();
  };
  EXPECT_THAT(refusal(layout(0, 0, {.tp_size = 2}, 4 * 8)), testing::IsEmpty());
  EXPECT_THAT(refusal(layout(0, 0, {.tp_size = 1}, 4 * 16)), testing::IsEmpty());
  EXPECT_THAT(refusal(layout(0, 0, {.tp_size = 1}, 4 * 8)),
              HasSubstr("32 (4 rows x 1 of 2 columns) here, 32 (4 rows x 1 of 2 columns) there"));
  EXPECT_THAT(refusal(layout(0, 0, {.tp_size = 1}, 4 * 12)), HasSubstr("32"));
  EXPECT_THAT(refusal(layout(0, 4, {.tp_size = 2}, 4 * 8)),
              HasSubstr("kv_heads of all ranks 2 here, 4 there"));
  wire::KvLayout empty = describe(layout(0, 0, {.tp_size = 2}, 4 * 8), {});
  empty.page_tokens = 0;  // only a peer can say that
  EXPECT_THAT(check_mappable(prefill, empty).detail(), HasSubstr("page_tokens 4 here, 0 there"));
  KvLayout opaque = layout(0, 0, {.tp_size = 2}, 4 * 8);
  opaque.element_order = "opaque";
  EXPECT_THAT(refusal(opaque), HasSubstr("element_order nhd here, opaque there"));
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
  EXPECT_THAT(refusal([](KvLayout& l) { l.rank.dcp_size = 0; }), HasSubstr("dcp_rank 0 of 0"));
  EXPECT_THAT(refusal([](KvLayout& l) {
                l.kv_heads = 2;
                l.total_kv_heads = 8;
              }),
              HasSubstr("kv_heads is 2, but of 8 each of 1 ranks has 8"));
  EXPECT_THAT(refusal([](KvLayout& l) {
                l.kv_heads = 2;
                l.total_kv_heads = 8;
                l.rank.tp_size = 3;
              }),
              HasSubstr("8 kv heads can't be divided among tp_size 3"));
  EXPECT_THAT(refusal([](KvLayout& l) { l.components[0].shapes = {{.rows = 0}}; }),
              HasSubstr("kv shape of 0 rows"));
  EXPECT_THAT(refusal([](KvLayout& l) {
                l.components[0].shapes = {{.columns = 4, .total_columns = 4, .groups = {1, 2}}};
              }),
              HasSubstr("in 2 groups of together 3"));
  EXPECT_THAT(refusal([](KvLayout& l) { l.components[0].buffers[0].shape = 1; }),
              HasSubstr("kv buffer 0 has shape 1 of 0"));
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
