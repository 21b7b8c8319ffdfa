#include "engine/prepared_layouts.h"

#include <gtest/gtest.h>

namespace kvmend::engine {
namespace {

const Address kPeer = *parse_address("127.0.0.1:1000");

std::shared_ptr<const PreparedLayouts> prepared(PageLayout local, PageLayout remote) {
  auto made = PreparedLayouts::create(kPeer, std::move(local), std::move(remote));
  EXPECT_TRUE(made) << made.error().to_string();
  return *made;
}

TEST(PreparedLayouts, GivesAPieceForEachPageOfEachBuffer) {
  const auto layouts =
      prepared({{0x10000, 0x90000}, 4096, 8192, 10}, {{0x500000, 0x700000}, 4096, 0, 20});
  std::vector<transport::Piece> pieces;
  const std::vector<std::uint32_t> local{3, 1};
  const std::vector<std::uint32_t> remote{7, 19};
  ASSERT_TRUE(layouts->append_pieces(local, remote, pieces).is_ok());
  ASSERT_EQ(pieces.size(), 4U);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(pieces[0].local), 0x10000U + 3 * 8192);
  EXPECT_EQ(pieces[0].offset, 0x500000U + 7 * 4096);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(pieces[3].local), 0x90000U + 8192);
  EXPECT_EQ(pieces[3].offset, 0x700000U + 19 * 4096);
  EXPECT_EQ(pieces[3].length, 4096U);
}

TEST(PreparedLayouts, MergesRunsThatAreContiguousOnBothSides) {
  const auto layouts = prepared({{0x10000}, 4096, 0, 16}, {{0x500000}, 4096, 0, 16});
  std::vector<transport::Piece> pieces;
  const std::vector<std::uint32_t> local{2, 3, 4, 8, 9};
  const std::vector<std::uint32_t> remote{5, 6, 7, 8, 10};
  ASSERT_TRUE(layouts->append_pieces(local, remote, pieces).is_ok());
  ASSERT_EQ(pieces.size(), 3U);
  EXPECT_EQ(pieces[0].length, 3U * 4096);
  EXPECT_EQ(pieces[1].length, 4096U);
}

// Case S1: what is kept of a request grows with its runs, not with its pages.
TEST(PreparedLayouts, FifteenThousandContiguousPagesAreOnePieceForEachBuffer) {
  constexpr std::uint32_t kPages = 15'000;
  const auto layouts = prepared({{0x10000, 0x1000000000}, 65'536, 0, kPages},
                                {{0x2000000000, 0x3000000000}, 65'536, 0, kPages});
  std::vector<std::uint32_t> pages(kPages);
  for (std::uint32_t i = 0; i < kPages; ++i) pages[i] = i;
  std::vector<transport::Piece> pieces;
  ASSERT_TRUE(layouts->append_pieces(pages, pages, pieces).is_ok());
  ASSERT_EQ(pieces.size(), 2U);
  EXPECT_EQ(pieces[1].length, kPages * 65'536ULL);
  // Two runs: the one gap costs one more piece.
  pieces.clear();
  pages.erase(pages.begin() + 7'000);
  ASSERT_TRUE(layouts->append_pieces(pages, pages, pieces).is_ok());
  EXPECT_EQ(pieces.size(), 4U);
}

TEST(PreparedLayouts, RefusesLayoutsThatDontFit) {
  const auto code = [](PageLayout local, PageLayout remote) {
    const auto made = PreparedLayouts::create(kPeer, std::move(local), std::move(remote));
    return made ? Code::kOk : made.error().code();
  };
  const PageLayout good{{0x10000}, 4096, 0, 16};
  EXPECT_EQ(code(good, good), Code::kOk);
  EXPECT_EQ(code({{}, 4096, 0, 16}, good), Code::kInvalidArgument);
  EXPECT_EQ(code({{0x10000}, 0, 0, 16}, good), Code::kInvalidArgument);
  EXPECT_EQ(code({{0x10000}, 4096, 0, 0}, good), Code::kInvalidArgument);
  EXPECT_EQ(code({{0x10000}, 4096, 100, 16}, good), Code::kInvalidArgument);
  EXPECT_EQ(code({{0}, 4096, 0, 16}, good), Code::kInvalidArgument);
  EXPECT_EQ(code({{~0ULL - 4096}, 4096, 0, 16}, good), Code::kInvalidArgument);
  EXPECT_EQ(code({{0x10000}, 1ULL << 50U, 0, 1U << 20U}, good), Code::kInvalidArgument);
  EXPECT_EQ(code(good, {{0x10000}, 8192, 0, 16}), Code::kInvalidArgument);
  EXPECT_EQ(code(good, {{0x10000, 0x20000}, 4096, 0, 16}), Code::kInvalidArgument);
}

TEST(PreparedLayouts, RefusesBadIndices) {
  const auto layouts = prepared({{0x10000}, 4096, 0, 16}, {{0x500000}, 4096, 0, 8});
  std::vector<transport::Piece> pieces;
  const auto code = [&](std::vector<std::uint32_t> local, std::vector<std::uint32_t> remote) {
    return layouts->append_pieces(local, remote, pieces).code();
  };
  EXPECT_EQ(code({}, {}), Code::kInvalidArgument);
  EXPECT_EQ(code({1, 2}, {1}), Code::kInvalidArgument);
  EXPECT_EQ(code({16}, {1}), Code::kOutOfRange);
  EXPECT_EQ(code({15}, {8}), Code::kOutOfRange);
  EXPECT_EQ(code({15}, {7}), Code::kOk);
}

TEST(PreparedLayouts, ChecksThatTheBuffersAreRegistered) {
  const auto layouts = prepared({{0x10000, 0x30000}, 4096, 0, 16}, {{0x1000, 0x2000}, 4096, 0, 1});
  memory::RegionTable regions;
  ASSERT_TRUE(
      regions.add(reinterpret_cast<void*>(0x10000), 0x10000, MemoryKind::kHost, Access::kNone));
  EXPECT_EQ(layouts->check_registered(LocalRegions(regions.list())).code(), Code::kNotRegistered);
  ASSERT_TRUE(
      regions.add(reinterpret_cast<void*>(0x30000), 0x10000, MemoryKind::kHost, Access::kNone));
  EXPECT_TRUE(layouts->check_registered(LocalRegions(regions.list())).is_ok());
}

}  // namespace
}  // namespace kvmend::engine
