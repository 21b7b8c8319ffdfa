// Golden table: the reference's rules, worked out by hand from its documented mapping (D, P =
// decode, prefill attention TP).
#include "kv/rank_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "kv/geometry.h"

namespace kvmend::kv {
namespace {

using ::testing::HasSubstr;

constexpr std::uint32_t kMha = 8;  // kv heads of the model
constexpr std::uint32_t kMla = 1;

struct Row {
  const char* name;
  KvTopology prefill;
  KvRank decode;
  std::vector<std::uint32_t> tp;  // ranks that decode talks to
  std::vector<std::uint32_t> pp;
  std::vector<std::uint32_t> cp;
  std::uint32_t required_responses;
  std::uint32_t required_destinations;
  std::vector<std::uint32_t> dummies;  // tp ranks that write nothing
};

KvTopology prefill(std::uint32_t tp, std::uint32_t heads, std::uint32_t pp = 1,
                   std::uint32_t cp = 1, KvShare share = KvShare::kLeader) {
  return {.tp_size = tp, .pp_size = pp, .cp_size = cp, .share = share, .total_kv_heads = heads};
}

KvRank decode(std::uint32_t rank, std::uint32_t size, std::uint32_t pp_rank = 0,
              std::uint32_t pp_size = 1) {
  return {.tp_rank = rank, .tp_size = size, .pp_rank = pp_rank, .pp_size = pp_size};
}

TEST(RankMap, EqualsTheReference) {
  const std::vector<Row> table = {
      // D = P: rank % D, one response.
      {"4 to 4", prefill(4, kMha), decode(2, 4), {2}, {0}, {0}, 1, 1, {}},
      {"4 to 4 MLA", prefill(4, kMla), decode(3, 4), {3}, {0}, {0}, 1, 1, {}},
      // D > P: rank // (D/P), D/P destinations, one response.
      {"2 to 8, first", prefill(2, kMha), decode(0, 8), {0}, {0}, {0}, 1, 4, {}},
      {"2 to 8, last of rank 0", prefill(2, kMha), decode(3, 8), {0}, {0}, {0}, 1, 4, {}},
      {"2 to 8, first of rank 1", prefill(2, kMha), decode(4, 8), {1}, {0}, {0}, 1, 4, {}},
      {"1 to 4 MLA", prefill(1, kMla), decode(3, 4), {0}, {0}, {0}, 1, 4, {}},
      // D < P: the P/D consecutive ranks; MHA needs P/D responses, MLA one, the others are dummies.
      {"8 to 2", prefill(8, kMha), decode(0, 2), {0, 1, 2, 3}, {0}, {0}, 4, 1, {}},
      {"8 to 2, second", prefill(8, kMha), decode(1, 2), {4, 5, 6, 7}, {0}, {0}, 4, 1, {}},
      {"4 to 1 MLA", prefill(4, kMla), decode(0, 1), {0, 1, 2, 3}, {0}, {0}, 1, 1, {1, 2, 3}},
      {"8 to 2 MLA", prefill(8, kMla), decode(1, 2), {4, 5, 6, 7}, {0}, {0}, 1, 1, {5, 6, 7}},
      // Hybrid (MLA and a state that is divided): all of them write.
      {"4 to 2, hybrid",
       {.tp_size = 4, .total_kv_heads = kMla, .divided_states = true},
       decode(1, 2),
       {2, 3},
       {0},
       {0},
       2,
       1,
       {}},
      // GQA heads that replicate: the reference lets every copy be sent, here the first one is.
      {"8 to 2, 4 heads", prefill(8, 4), decode(0, 2), {0, 1, 2, 3}, {0}, {0}, 4, 1, {1, 3}},
      {"8 to 1, 2 heads",
       prefill(8, 2),
       decode(0, 1),
       {0, 1, 2, 3, 4, 5, 6, 7},
       {0},
       {0},
       8,
       1,
       {1, 2, 3, 5, 6, 7}},
      // PP: decode's stages equal prefill's, or one takes all.
      {"pp 2 to 2", prefill(1, kMha, 2), decode(0, 1, 1, 2), {0}, {1}, {0}, 1, 1, {}},
      {"pp 2 to 1", prefill(1, kMha, 2), decode(0, 1), {0}, {0, 1}, {0}, 2, 1, {}},
      {"pp 2 to 1, tp 4 to 2", prefill(4, kMha, 2), decode(1, 2), {2, 3}, {0, 1}, {0}, 4, 1, {}},
      {"pp 4 to 1 MLA, tp 2 to 1",
       prefill(2, kMla, 4),
       decode(0, 1),
       {0, 1},
       {0, 1, 2, 3},
       {0},
       4,
       1,
       {1}},
      // CP: context rank 0 only, or all where layers are split or pages are shared.
      {"cp 4", prefill(2, kMha, 1, 4), decode(1, 2), {1}, {0}, {0}, 1, 1, {}},
      {"cp 4, layers",
       prefill(2, kMha, 1, 4, KvShare::kLayers),
       decode(1, 2),
       {1},
       {0},
       {0, 1, 2, 3},
       4,
       1,
       {}},
      {"cp 2, ranges",
       prefill(1, kMla, 1, 2, KvShare::kRanges),
       decode(2, 4),
       {0},
       {0},
       {0, 1},
       2,
       4,
       {}},
      {"cp 2, dealt pages",
       prefill(1, kMla, 1, 2, KvShare::kInterleaved),
       decode(0, 1),
       {0},
       {0},
       {0, 1},
       2,
       1,
       {}},
      // MLA KV sharding: D = P, all ranks.
      {"sharded MLA",
       prefill(4, kMla, 1, 1, KvShare::kInterleaved),
       decode(1, 4),
       {0, 1, 2, 3},
       {0},
       {0},
       4,
       4,
       {}},
  };
  for (const Row& row : table) {
    SCOPED_TRACE(row.name);
    const auto map = map_kv_ranks(row.prefill, row.decode);
    ASSERT_TRUE(map.has_value()) << map.error().to_string();
    std::vector<KvServer> expected;
    for (const std::uint32_t cp : row.cp)
      for (const std::uint32_t tp : row.tp)
        for (const std::uint32_t pp : row.pp)
          expected.push_back({.tp_rank = tp,
                              .pp_rank = pp,
                              .cp_rank = cp,
                              .writes = std::ranges::find(row.dummies, tp) == row.dummies.end()});
    EXPECT_EQ(map->servers, expected);
    EXPECT_EQ(map->required_responses, row.required_responses);
    EXPECT_EQ(map->required_destinations, row.required_destinations);
  }
}

TEST(RankMap, WhatHasNoMappingIsRefusedWithBothValues) {
  const auto refusal = [](const KvTopology& from, const KvRank& to) {
    const auto map = map_kv_ranks(from, to);
    EXPECT_FALSE(map.has_value());
    return map ? std::string() : map.error().detail();
  };
  EXPECT_THAT(refusal(prefill(3, 6), decode(0, 2)), HasSubstr("tp_size 3 here, 2 there"));
  EXPECT_THAT(refusal(prefill(2, 8, 4), decode(0, 2, 0, 2)), HasSubstr("pp_size 4 here, 2 there"));
  EXPECT_THAT(refusal(prefill(1, 8, 1, 2), {.cp_rank = 1, .cp_size = 2}),
              HasSubstr("cp_size 2 here, 2 there"));
  EXPECT_THAT(refusal(prefill(2, 1, 1, 1, KvShare::kInterleaved), decode(0, 4)),
              HasSubstr("tp_size 2 here, 4 there"));
}

TEST(RankMap, DataParallelRankByWordRoomOrQuery) {
  const RoomId room{(std::uint64_t{1} << 63) - 1};
  EXPECT_EQ(choose_dp_rank(3, true, room, 4), 3U);
  EXPECT_EQ(choose_dp_rank(std::nullopt, true, room, 4), 3U);  // all 63 bits count
  EXPECT_EQ(choose_dp_rank(std::nullopt, true, RoomId{6}, 4), 2U);
  EXPECT_EQ(choose_dp_rank(std::nullopt, false, room, 1), 0U);
  EXPECT_EQ(choose_dp_rank(std::nullopt, false, room, 4), std::nullopt);
}

// Head slices as the reference computes them: (source start, destination start, heads).
TEST(Geometry, HeadSlicesEqualTheReference) {
  struct Slice {
    std::uint32_t heads, source_tp, destination_tp, source_rank, destination_rank;
    std::vector<SharedColumns> expected;
  };
  const std::vector<Slice> table = {
      {8, 2, 4, 0, 0, {{0, 0, 2}}}, {8, 2, 4, 0, 1, {{2, 0, 2}}},
      {8, 2, 4, 1, 2, {{0, 0, 2}}}, {8, 2, 4, 1, 3, {{2, 0, 2}}},
      {8, 4, 2, 0, 0, {{0, 0, 2}}}, {8, 4, 2, 1, 0, {{0, 2, 2}}},
      {8, 4, 2, 3, 1, {{0, 2, 2}}}, {8, 4, 4, 3, 3, {{0, 0, 2}}},
      {4, 2, 8, 0, 0, {{0, 0, 1}}},  // heads replicate at decode: neighbours share one
      {4, 2, 8, 0, 1, {{0, 0, 1}}}, {4, 2, 8, 0, 2, {{1, 0, 1}}},
      {4, 2, 8, 1, 4, {{0, 0, 1}}}, {4, 2, 8, 1, 7, {{1, 0, 1}}},
      {2, 8, 2, 0, 0, {{0, 0, 1}}},  // and at prefill: the first of those that serve sends
      {2, 8, 2, 1, 0, {}},          {2, 8, 2, 4, 1, {{0, 0, 1}}},
      {2, 8, 2, 5, 1, {}},          {1, 4, 8, 3, 7, {{0, 0, 1}}},
  };
  for (const Slice& row : table) {
    const auto side = [&](std::uint32_t rank, std::uint32_t size) {
      const KvShape shape{.columns = columns_per_rank(row.heads, size), .total_columns = row.heads};
      return *segments_of(shape, rank, size);
    };
    const auto servers =
        tensor_servers(row.source_tp, row.destination_rank, row.destination_tp, false);
    ASSERT_TRUE(servers.has_value());
    EXPECT_EQ(shared_columns(side(row.source_rank, row.source_tp),
                             side(row.destination_rank, row.destination_tp), row.source_rank,
                             servers->first),
              row.expected)
        << row.heads << " heads, " << row.source_rank << " of " << row.source_tp << " to "
        << row.destination_rank << " of " << row.destination_tp;
  }
}

// A convolution state [query | key | value]: each block is divided for itself.
TEST(Geometry, GroupsAreDividedEachForItself) {
  const KvShape whole{.columns = 16, .total_columns = 16, .groups = {4, 4, 8}};
  const KvShape half{.columns = 8, .total_columns = 16, .groups = {4, 4, 8}};
  EXPECT_EQ(shared_columns(*segments_of(whole, 0, 1), *segments_of(half, 1, 2), 0, 0),
            (std::vector<SharedColumns>{{2, 0, 2}, {6, 2, 2}, {12, 4, 4}}));
  EXPECT_EQ(shared_columns(*segments_of(half, 1, 2), *segments_of(whole, 0, 1), 1, 0),
            (std::vector<SharedColumns>{{0, 2, 2}, {2, 6, 2}, {4, 12, 4}}));
}

TEST(Geometry, WhatCantBeDividedHasNoSegments) {
  EXPECT_FALSE(segments_of({.columns = 3, .total_columns = 8}, 0, 3).has_value());
  EXPECT_FALSE(segments_of({.columns = 3, .total_columns = 8}, 0, 2).has_value());
  EXPECT_EQ(columns_per_rank(8, 3), 0U);
  EXPECT_EQ(columns_per_rank(2, 8), 1U);
}

}  // namespace
}  // namespace kvmend::kv
