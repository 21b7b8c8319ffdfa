#include "bootstrap/memory_store.h"

#include <gtest/gtest.h>

namespace kvmend::bootstrap {
namespace {

using namespace std::chrono_literals;

Time at(Duration since) {
  return Time(since);
}

// Case B4: a flood of rooms.
TEST(MemoryStore, B4_RoomsAreBoundedAndTheOldestGo) {
  MemoryStore store(1'000);
  std::size_t evicted = 0;
  for (std::uint64_t i = 0; i < 1'000'000; ++i) evicted += store.put_room(RoomId(i), 1, at(120s));
  EXPECT_EQ(evicted, 999'000U);
  EXPECT_EQ(store.room_count(), 1'000U);
  EXPECT_EQ(store.room(RoomId(999'999), at(1s)), 1);
  EXPECT_EQ(store.room(RoomId(0), at(1s)), std::nullopt);
  EXPECT_EQ(store.expire(at(120s)).rooms, 1'000U);
  EXPECT_EQ(store.room_count(), 0U);
}

TEST(MemoryStore, ARoomRegisteredAgainLivesOnAndTakesNoMoreRoom) {
  MemoryStore store(10);
  for (int i = 0; i < 1'000; ++i) EXPECT_FALSE(store.put_room(RoomId(1), i, at(10s + 1s * i)));
  EXPECT_EQ(store.expire(at(20s)).rooms, 0U);
  EXPECT_EQ(store.room(RoomId(1), at(20s)), 999);
  EXPECT_EQ(store.room(RoomId(1), at(1'009s)), std::nullopt) << "expired before it is collected";
  EXPECT_EQ(store.expire(at(1'009s)).rooms, 1U);
}

TEST(MemoryStore, RetiredIncarnationsAreBounded) {
  MemoryStore store;
  store.retire(Incarnation(0));
  EXPECT_FALSE(store.is_retired(Incarnation(0))) << "0 means unknown";
  for (std::uint64_t i = 1; i <= limits::kMaxRetired + 1; ++i) store.retire(Incarnation(i));
  EXPECT_FALSE(store.is_retired(Incarnation(1)));
  EXPECT_TRUE(store.is_retired(Incarnation(2)));
}

TEST(MemoryStore, RanksExpireByTheirLease) {
  MemoryStore store;
  store.put_rank({.tp = 0}, {.record = {}, .expires = at(5s)});
  store.put_rank({.tp = 1}, {.record = {}, .expires = kForever});
  EXPECT_EQ(store.expire(at(4s)).ranks, 0U);
  EXPECT_EQ(store.expire(at(5s)).ranks, 1U);
  EXPECT_EQ(store.rank_count(), 1U);
  EXPECT_TRUE(store.rank({.tp = 1}).has_value());
}

}  // namespace
}  // namespace kvmend::bootstrap
