#include "transport/local/small_pieces.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <vector>

#include "base/config.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace kvmend::transport::local {
namespace {

constexpr std::size_t kSystemPage = 4'096;

class SmallPieces : public ::testing::Test {
 protected:
  SmallPieces() : process(std::move(*PeerProcess::open(::getpid(), 0))) {
    for (std::size_t i = 0; i < source.size(); ++i)
      source[i] = static_cast<std::byte>(i * 7 + i / 4096);
  }
  void add(std::size_t from_at, std::size_t to_at, std::size_t length) {
    from.push_back({source.data() + from_at, length});
    to.push_back({target.data() + to_at, length});
  }
  [[nodiscard]] bool copy(const PeerProcess* of) { return copy_small(of, to, from, sum); }
  /// Everything that was asked for is there, and nothing else was touched.
  void expect_copied() {
    std::vector<std::byte> expected(target.size());
    for (std::size_t i = 0; i < from.size(); ++i)
      std::memcpy(expected.data() + (static_cast<std::byte*>(to[i].iov_base) - target.data()),
                  from[i].iov_base, from[i].iov_len);
    EXPECT_EQ(target, expected);
  }

  PeerProcess process;
  std::vector<std::byte> source = std::vector<std::byte>(4U << 20);
  std::vector<std::byte> target = std::vector<std::byte>(4U << 20);
  std::vector<iovec> from;
  std::vector<iovec> to;
  std::optional<wire::Checksum> sum;
};

// Heads of tokens: a strip of each row of a page, into rows of their own.
TEST_F(SmallPieces, StripsOfRows) {
  for (const std::size_t strip : {64U, 256U, 1'000U})
    for (const PeerProcess* of : std::array<const PeerProcess*, 2>{&process, nullptr}) {
      from.clear();
      to.clear();
      std::ranges::fill(target, std::byte{0});
      for (std::size_t i = 0; i < 1'000 && (i + 1) * strip <= config::kSmallCopyStepBytes; ++i)
        add(i * 4 * strip + 17, i * strip + 5, strip);
      ASSERT_TRUE(copy(of));
      expect_copied();
    }
}

TEST_F(SmallPieces, AreSmallAndNearEachOther) {
  const auto rows = [&](std::size_t length, std::size_t step) {
    from.clear();
    for (std::size_t i = 0; i < 32; ++i) from.push_back({source.data() + i * step, length});
    return std::span<const iovec>(from);
  };
  EXPECT_TRUE(are_small(rows(256, 1'024), 32 * 256, true));
  EXPECT_FALSE(are_small(rows(256, 65'536), 32 * 256, true)) << "nothing to read at once";
  EXPECT_TRUE(are_small(rows(256, 65'536), 32 * 256, false)) << "mapped memory is copied by us";
  EXPECT_FALSE(are_small(rows(4'096, 8'192), 32 * 4'096, false));
  EXPECT_FALSE(are_small(rows(256, 1'024).first(4), 4 * 256, true)) << "too few";
}

TEST_F(SmallPieces, AnyOrderLengthsAndGaps) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 200; ++round) {
    from.clear();
    to.clear();
    std::ranges::fill(target, std::byte{0});
    std::size_t from_at = random() % 100'000;
    std::size_t to_at = random() % 1'000;
    for (std::size_t i = 0; i < 100; ++i) {
      const std::size_t length = 1 + random() % 2'000;
      if (random() % 4 == 0) from_at = random() % (3U << 20);  // also backwards, also overlapping
      add(from_at, to_at, length);
      from_at += length + (random() % 3 == 0 ? 0 : random() % 6'000);
      to_at += length + random() % 9'000;
    }
    ASSERT_TRUE(copy(&process));
    expect_copied();
  }
}

TEST_F(SmallPieces, TheSumIsOfTheBytesInOrder) {
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i < 64; ++i) {
    add(i * 700, i * 400, 300);
    bytes.insert(bytes.end(), source.begin() + static_cast<std::ptrdiff_t>(i * 700),
                 source.begin() + static_cast<std::ptrdiff_t>(i * 700 + 300));
  }
  sum.emplace();
  ASSERT_TRUE(copy(&process));
  EXPECT_EQ(sum->value(), XXH3_64bits(bytes.data(), bytes.size()));
}

// A page between two pieces that belongs to nobody isn't read: it may not be there.
TEST_F(SmallPieces, PagesWithoutAWantedByteAreNotTouched) {
  auto* pages = static_cast<std::byte*>(
      ::mmap(nullptr, 3 * kSystemPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(pages, MAP_FAILED);
  std::memset(pages, 7, 3 * kSystemPage);
  ASSERT_EQ(::mprotect(pages + kSystemPage, kSystemPage, PROT_NONE), 0);
  from = {{pages + kSystemPage - 100, 100}, {pages + 2 * kSystemPage, 100}};
  to = {{target.data(), 100}, {target.data() + 100, 100}};
  EXPECT_TRUE(copy(&process));
  EXPECT_EQ(std::ranges::count(target, std::byte{7}), 200);
  from[1].iov_base = pages + kSystemPage;
  EXPECT_FALSE(copy(&process)) << "a wanted one is an error";
  ::munmap(pages, 3 * kSystemPage);
}

TEST_F(SmallPieces, PlacesThatCantBeWrittenAreAnError) {
  void* hole = ::mmap(nullptr, kSystemPage, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(hole, MAP_FAILED);
  add(0, 0, 100);
  from.push_back({source.data(), 100});
  to.push_back({hole, 100});
  EXPECT_FALSE(copy(&process));
  EXPECT_FALSE(copy(nullptr));
  ::munmap(hole, kSystemPage);
}

}  // namespace
}  // namespace kvmend::transport::local
