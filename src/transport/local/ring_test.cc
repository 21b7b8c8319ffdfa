#include "transport/local/ring.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "transport/local/board.h"

namespace kvmend::transport::local {
namespace {

struct Both {
  std::unique_ptr<RingLayout> a = std::make_unique<RingLayout>();
  std::unique_ptr<RingLayout> b = std::make_unique<RingLayout>();
  RingPair left{*a, *b};
  RingPair right{*b, *a};
};

std::vector<std::byte> frame_of(std::size_t bytes, int value) {
  return std::vector<std::byte>(bytes, static_cast<std::byte>(value));
}

TEST(Ring, CarriesFramesInOrderBothWays) {
  Both s;
  EXPECT_FALSE(s.right.ready());
  EXPECT_FALSE(s.right.take());
  for (int i = 0; i < 1'000; ++i) {
    const auto bytes = static_cast<std::size_t>(i) % kRingFrameBytes + 1;
    ASSERT_TRUE(s.left.put(7, frame_of(bytes, i)));
    ASSERT_TRUE(s.right.put(8, frame_of(1, i + 1)));
    const auto there = s.right.take();
    const auto back = s.left.take();
    ASSERT_TRUE(there && back);
    EXPECT_EQ(there->lane, 7U);
    EXPECT_EQ(std::vector(there->view().begin(), there->view().end()), frame_of(bytes, i));
    EXPECT_EQ(back->view().front(), static_cast<std::byte>(i + 1));
  }
}

TEST(Ring, IsBounded) {
  Both s;
  for (std::size_t i = 0; i < kRingEntries; ++i) ASSERT_TRUE(s.left.put(1, frame_of(8, 1)));
  EXPECT_FALSE(s.left.put(1, frame_of(8, 1)));
  ASSERT_TRUE(s.right.take());
  EXPECT_TRUE(s.left.put(1, frame_of(8, 2)));
  EXPECT_FALSE(s.left.put(1, frame_of(kRingFrameBytes + 1, 3)));
}

// The other side's half is what a broken peer made of it.
TEST(Ring, NonsenseOfThePeerStaysInside) {
  Both s;
  s.b->taken.store(1'000'000);  // more than there ever were
  EXPECT_FALSE(s.left.put(1, frame_of(8, 1)));
  s.b->entries[0].size = 0xFFFFFFFFU;
  s.b->entries[0].turn.store(1);
  const auto frame = s.left.take();
  ASSERT_TRUE(frame);
  EXPECT_EQ(frame->view().size(), kRingFrameBytes);
}

TEST(Ring, TwoThreadsLoseNothing) {
  Both s;
  constexpr std::uint32_t kFrames = 100'000;
  std::jthread producer([&] {
    for (std::uint32_t i = 0; i < kFrames;) {
      std::array<std::byte, 8> bytes{};
      store_le<std::uint64_t>(bytes.data(), i);
      if (s.left.put(i, bytes)) {
        ++i;
      } else {
        std::this_thread::yield();
      }
    }
  });
  for (std::uint32_t i = 0; i < kFrames;) {
    const auto frame = s.right.take();
    if (!frame) {
      std::this_thread::yield();
      continue;
    }
    ASSERT_EQ(frame->lane, i);
    ASSERT_EQ(load_le<std::uint64_t>(frame->view().data()), i);
    ++i;
  }
}

TEST(Ring, BoardsLendThemUntilNoneIsLeft) {
  const auto board = std::move(*Board::create());
  std::vector<std::size_t> taken;
  while (const auto index = board->take_ring()) taken.push_back(*index);
  EXPECT_EQ(taken.size(), kRings);
  board->give_ring(taken[3]);
  board->ring(taken[3]).taken.store(99);
  EXPECT_EQ(board->take_ring(), taken[3]);
  EXPECT_EQ(board->ring(taken[3]).taken.load(), 0U);
}

}  // namespace
}  // namespace kvmend::transport::local
