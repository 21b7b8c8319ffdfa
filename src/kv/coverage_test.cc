#include "kv/coverage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/config.h"
#include "kv/coverage_sums.h"

namespace kvmend::kv {
namespace {

using ::testing::HasSubstr;
using wire::KvCoverage;

KvLayout decode_layout() {
  return {.page_tokens = 4,
          .kv_heads = 2,
          .components = {{.items = 8,
                          .buffers = {{nullptr, 64}, {nullptr, 64}, {nullptr, 0}},
                          .layer_ids = {10, 11, 12}}}};
}

Coverage sum(const KvLayout& layout, const std::vector<KvCoverage>& writers) {
  std::vector<const KvCoverage*> all;
  for (const KvCoverage& one : writers) all.push_back(&one);
  return {layout, 0, all};
}

TEST(Coverage, WritersTogetherMustBringEveryByteOnce) {
  const KvLayout layout = decode_layout();
  const Coverage good = sum(layout, {{.bytes = {32, 64, 0}}, {.bytes = {32, 0, 0}}, {}});
  EXPECT_TRUE(good.check().is_ok());
  EXPECT_EQ(good.bytes_for(3, 3), 3U * 128);
  EXPECT_TRUE(good.takes(3, 3));
  // I8: one rank of two is missing.
  const Status missing = sum(layout, {{.bytes = {32, 64, 0}}}).check();
  EXPECT_EQ(missing.code(), Code::kIncompatible);
  EXPECT_THAT(missing.detail(), HasSubstr("32 of 64 bytes of each page of kv buffer 0 (layer 10)"));
  const Status twice = sum(layout, {{.bytes = {64, 64, 0}}, {.bytes = {64, 0, 0}}}).check();
  EXPECT_THAT(twice.detail(), HasSubstr("128 of 64 bytes"));
  EXPECT_FALSE(sum(layout, {}).check().is_ok());
}

// Once per set of prefill engines, and anew when one of them has answered anew.
TEST(Coverage, SumsAreKeptForEverySetOfAnswers) {
  const KvLayout layout = decode_layout();
  CoverageSums sums(layout);
  const WriterCoverage half{1, {{.bytes = {32, 64, 0}}}};
  const WriterCoverage rest{2, {{.bytes = {32, 0, 0}}}};
  const WriterCoverage all{3, {{.bytes = {64, 64, 0}}}};
  const auto first = sums.of({&half, nullptr, &rest});
  EXPECT_TRUE(first->check.is_ok());
  EXPECT_EQ(sums.of({&half, nullptr, &rest}), first);
  EXPECT_NE(sums.of({&half, &rest}), first);
  EXPECT_FALSE(sums.of({&half, nullptr, &all})->check.is_ok());
  EXPECT_TRUE(sums.of({nullptr, &all})->check.is_ok());
  for (std::uint64_t serial = 10; serial < 10 + 2 * config::kMaxCoverages; ++serial) {
    const WriterCoverage one{serial, all.by_component};
    EXPECT_TRUE(sums.of({&one})->check.is_ok());
    EXPECT_LE(sums.size(), config::kMaxCoverages);
  }
  EXPECT_TRUE(first->check.is_ok()) << "whoever holds one keeps it";
}

// Pages of different sizes: the last one of either side may be filled in part.
TEST(Coverage, CountsPagesOfBothSizes) {
  const KvLayout layout = decode_layout();
  const Coverage join = sum(layout, {{.bytes = {64, 64, 0}, .join = 2}});
  EXPECT_TRUE(join.check().is_ok());
  EXPECT_TRUE(join.takes(3, 2));
  EXPECT_FALSE(join.takes(3, 1) || join.takes(3, 3));
  EXPECT_EQ(join.bytes_for(2, 3), 3U * 64);
  const Coverage split = sum(layout, {{.bytes = {64, 64, 0}, .split = 4}});
  EXPECT_TRUE(split.takes(2, 8) && split.takes(2, 5));
  EXPECT_FALSE(split.takes(2, 4) || split.takes(2, 9));
  EXPECT_TRUE(split.takes(0, 0));
  EXPECT_FALSE(split.takes(1, 0));
  EXPECT_EQ(split.bytes_for(5, 2), 5U * 128);
  const Coverage mixed =
      sum(layout, {{.bytes = {32, 32, 0}, .join = 2}, {.bytes = {32, 32, 0}, .join = 4}});
  EXPECT_THAT(mixed.check().detail(), HasSubstr("2:1 and 4:1 of their pages"));
  EXPECT_FALSE(sum(layout, {{.bytes = {64, 64, 0}, .join = 3}}).check().is_ok())
      << "4 tokens aren't three equal parts";
}

TEST(Coverage, ElidedAndOptionalBuffersMayStayEmpty) {
  KvLayout layout = decode_layout();
  const Coverage elided = sum(layout, {{.bytes = {64, 0, 0}, .elided = {1}}});
  EXPECT_TRUE(elided.check().is_ok());
  EXPECT_EQ(elided.bytes_for(2, 2), 128U);
  EXPECT_FALSE(sum(layout, {{.bytes = {64, 0, 0}}}).check().is_ok());
  layout.components[0].buffers[1].optional = true;
  EXPECT_TRUE(sum(layout, {{.bytes = {64, 0, 0}}}).check().is_ok());
  EXPECT_FALSE(sum(layout, {{.bytes = {64, 8, 0}}}).check().is_ok()) << "all of it, or nothing";
}

TEST(Coverage, SharedPagesAndDealtTokens) {
  KvLayout layout = decode_layout();
  const KvCoverage half{.bytes = {64, 64, 0}, .divisor = 2};
  EXPECT_TRUE(sum(layout, {half, half}).check().is_ok());
  EXPECT_EQ(sum(layout, {half, half}).bytes_for(3, 3), 3U * 128);
  EXPECT_FALSE(sum(layout, {half}).check().is_ok());
  // Tokens dealt among 3 ranks: buffer 1 holds them all, 12 to a page.
  layout.rank = {.dcp_rank = 1, .dcp_size = 3};
  layout.components[0].shapes = {{.rows = 4, .columns = 2, .total_columns = 2},
                                 {.rows = 12, .columns = 2, .total_columns = 2}};
  layout.components[0].buffers[1] = {nullptr, 192, 1};
  const Coverage dealt = sum(layout, {{.bytes = {64, 192, 0}, .token_ranks = 3, .join = 3}});
  ASSERT_TRUE(dealt.check().is_ok()) << dealt.check().to_string();
  EXPECT_TRUE(dealt.takes(4, 2));
  EXPECT_FALSE(dealt.takes(4, 3));
  // 16 tokens: 1, 4, 7, 10, 13 are this rank's.
  EXPECT_EQ(dealt.bytes_for(2, 4), 5U * 16 + 16U * 16);
}

TEST(Coverage, AWordThatMakesNoSenseIsRefused) {
  const KvLayout layout = decode_layout();
  EXPECT_EQ(sum(layout, {{.bytes = {65, 64, 0}}}).check().code(), Code::kProtocolError);
  EXPECT_EQ(sum(layout, {{.bytes = {64, 64}}}).check().code(), Code::kProtocolError);
  EXPECT_EQ(sum(layout, {{.bytes = {64, 64, 0}, .elided = {3}}}).check().code(),
            Code::kProtocolError);
  EXPECT_EQ(sum(layout, {{.bytes = {64, 64, 0}, .token_ranks = 2}}).check().code(),
            Code::kIncompatible);
  EXPECT_EQ(
      sum(layout, {{.bytes = {64, 64, 0}, .divisor = 2}, {.bytes = {64, 64, 0}}}).check().code(),
      Code::kIncompatible);
}

}  // namespace
}  // namespace kvmend::kv
