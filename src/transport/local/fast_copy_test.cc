#include "transport/local/fast_copy.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

namespace kvmend::transport::local {
namespace {

TEST(FastCopy, CopiesAnyLengthAtAnyAlignmentAndNothingBeside) {
  std::mt19937_64 random(7);
  std::vector<std::byte> from(40'000);
  for (std::byte& b : from) b = static_cast<std::byte>(random());
  constexpr std::byte kGuard{0xA5};
  for (int round = 0; round < 2'000; ++round) {
    const std::size_t from_at = random() % 200;
    const std::size_t to_at = random() % 200;
    const std::size_t bytes = round % 3 == 0 ? random() % 300 : random() % 30'000;
    std::vector<std::byte> to(40'000, kGuard);
    // What is to come next is fetched only: it may lie anywhere, and needn't be there at all.
    const std::byte* const nowhere = reinterpret_cast<const std::byte*>(std::uintptr_t{64});
    const std::byte* const next = round % 4 == 0   ? nullptr
                                  : round % 4 == 1 ? nowhere
                                                   : from.data() + random() % from.size();
    fast_copy(to.data() + to_at, from.data() + from_at, bytes, next);
    finish_copies();
    ASSERT_EQ(std::memcmp(to.data() + to_at, from.data() + from_at, bytes), 0) << bytes;
    for (std::size_t i = 0; i < to_at; ++i) ASSERT_EQ(to[i], kGuard);
    for (std::size_t i = to_at + bytes; i < to_at + bytes + 300; ++i) ASSERT_EQ(to[i], kGuard);
  }
}

TEST(FastCopy, SaysWhatItUses) {
  EXPECT_NE(fast_copy_name(), nullptr);
}

}  // namespace
}  // namespace kvmend::transport::local
