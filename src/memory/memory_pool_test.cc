#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "kvmend/pool.h"
#include "memory/pool_registry.h"

namespace kvmend::memory {
namespace {

std::shared_ptr<PoolSegment> segment_at(const std::byte* base) {
  for (const auto& segment : PoolRegistry::of_process().list())
    if (segment->base() == base) return segment;
  return nullptr;
}

TEST(MemoryPool, IsZeroedAlignedAndWritable) {
  const auto pool = MemoryPool::create(5'000'000);
  ASSERT_TRUE(pool) << pool.error().to_string();
  EXPECT_EQ((*pool)->size(), 5'000'000U);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>((*pool)->data()) % (2U << 20U), 0U);
  EXPECT_TRUE(std::all_of((*pool)->data(), (*pool)->data() + 5'000'000,
                          [](std::byte b) { return b == std::byte{0}; }));
  std::memset((*pool)->data(), 7, (*pool)->size());
}

TEST(MemoryPool, RefusesNothing) {
  const auto pool = MemoryPool::create(0);
  ASSERT_FALSE(pool);
  EXPECT_EQ(pool.error().code(), Code::kInvalidArgument);
}

TEST(MemoryPool, CantBeTruncatedNorMappedWritableByOthers) {
  const auto pool = MemoryPool::create(1U << 20U);
  ASSERT_TRUE(pool);
  const auto segment = segment_at((*pool)->data());
  ASSERT_NE(segment, nullptr);
  EXPECT_EQ(::ftruncate(segment->fd(), 0), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(::ftruncate(segment->fd(), 1 << 30), -1);
  EXPECT_EQ(::fcntl(segment->fd(), F_GET_SEALS) & kSegmentSeals, kSegmentSeals);
  EXPECT_EQ(::fcntl(segment->fd(), F_ADD_SEALS, F_SEAL_WRITE), -1);
  EXPECT_EQ(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, segment->fd(), 0),
            MAP_FAILED);
}

TEST(MemoryPool, TellsSubscribersAndLeavesTheRegistry) {
  int told = 0;
  PoolRegistry& registry = PoolRegistry::of_process();
  const std::uint64_t handle = registry.subscribe([&told] { ++told; });
  auto pool = MemoryPool::create(4096);
  ASSERT_TRUE(pool);
  const std::byte* base = (*pool)->data();
  EXPECT_EQ(told, 1);
  EXPECT_NE(segment_at(base), nullptr);
  pool->reset();
  EXPECT_EQ(told, 2);
  EXPECT_EQ(segment_at(base), nullptr);
  registry.unsubscribe(handle);
  EXPECT_TRUE(MemoryPool::create(4096).has_value());
  EXPECT_EQ(told, 2);
}

}  // namespace
}  // namespace kvmend::memory
