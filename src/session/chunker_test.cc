#include "session/chunker.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "env/sim/core.h"
#include "wire/frame.h"

namespace kvmend::session {
namespace {

TEST(ChunkerTest, LongTransfersHaveLongChunksAtFirst) {
  constexpr std::uint32_t kLeast = 512U << 10;
  constexpr std::uint32_t kMost = 4U << 20;
  TransferState transfer;
  transfer.total_bytes = 256ULL << 20;
  transfer.pieces.push_back({nullptr, RegionRef{1, 1}, 0, transfer.total_bytes});
  EXPECT_EQ(chunk_bytes(transfer, kLeast, kLeast), kLeast);
  std::vector<std::uint32_t> sizes;
  while (transfer.has_unsent())
    sizes.push_back(next_span(transfer, chunk_bytes(transfer, kLeast, kMost)).bytes);
  EXPECT_EQ(sizes.front(), kMost);
  EXPECT_EQ(sizes.back(), kLeast);
  EXPECT_TRUE(std::ranges::is_sorted(sizes, std::greater{}));
  EXPECT_EQ(std::accumulate(sizes.begin(), sizes.end(), 0ULL), transfer.total_bytes);
  EXPECT_LT(sizes.size(), 128U);  // 512 of the least size

  transfer = {};
  transfer.total_bytes = 8ULL << 20;
  EXPECT_EQ(chunk_bytes(transfer, kLeast, kMost), kLeast);
}

// Property: the chunks of a transfer are its bytes, each once and in order, within both caps.
TEST(ChunkerTest, ChunksCoverEveryByteOnce) {
  env::sim::SimRandom random(1);
  for (int round = 0; round < 200; ++round) {
    TransferState transfer;
    auto* local = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 40U);  // never touched
    const std::size_t pieces = 1 + random.below(3'000);
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < pieces; ++i) {
      const std::uint64_t length = 1 + random.below(random.below(20) == 0 ? 100'000 : 50);
      transfer.pieces.push_back({local + total, RegionRef{1, 1}, total, length});
      total += length;
    }
    const auto most = static_cast<std::uint32_t>(1 + random.below(70'000));
    std::uint64_t at = 0;
    std::deque<ChunkSpan> spans;
    while (transfer.has_unsent()) {
      const ChunkSpan span = next_span(transfer, most);
      ASSERT_LE(span.bytes, most);
      ASSERT_GT(span.bytes, 0U);
      std::size_t slices = 0;
      make_chunk(transfer, span)
          .for_each_slice(
              [&](const std::byte* from, RegionRef, std::uint64_t offset, std::uint32_t length) {
                ASSERT_EQ(from, local + at);
                ASSERT_EQ(offset, at);
                at += length;
                ++slices;
              });
      ASSERT_EQ(slices, span.pieces);
      ASSERT_LE(slices, wire::kMaxSlicesPerPull);
      spans.push_back(span);
    }
    ASSERT_EQ(at, total);
    // What must be sent again comes as it was.
    transfer.resend = spans;
    for (const ChunkSpan& span : spans) {
      const ChunkSpan again = next_span(transfer, 1);
      ASSERT_EQ(again.first_piece, span.first_piece);
      ASSERT_EQ(again.skip, span.skip);
      ASSERT_EQ(again.bytes, span.bytes);
    }
    ASSERT_FALSE(transfer.has_unsent());
  }
}

}  // namespace
}  // namespace kvmend::session
