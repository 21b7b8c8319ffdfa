#include "memory/region_table.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>

namespace kvmend::memory {
namespace {

// Addresses are only compared: none of this memory exists.
void* at(std::uintptr_t address) {
  return reinterpret_cast<void*>(address);
}

TEST(RegionTable, FindsWhatWasAdded) {
  RegionTable table;
  const RegionRef ref = *table.add(at(0x1000), 0x100, MemoryKind::kHost, Access::kReadWrite);
  ASSERT_NE(table.find(ref), nullptr);
  EXPECT_EQ(table.find(ref)->base, at(0x1000));
  EXPECT_EQ(table.find_containing(at(0x10FF), 1), table.find(ref));
  EXPECT_EQ(table.find_containing(at(0x10FF), 2), nullptr);
  EXPECT_EQ(table.find_containing(at(0x0FFF), 1), nullptr);
  EXPECT_EQ(table.find_containing(at(0x1100), 0), nullptr);
  EXPECT_EQ(table.total_bytes(), 0x100U);
}

TEST(RegionTable, RefusesOverlapAndNamesBothRanges) {
  RegionTable table;
  ASSERT_TRUE(table.add(at(0x1000), 0x100, MemoryKind::kHost, Access::kNone));
  for (const auto& [base, length] : std::array<std::pair<std::uintptr_t, std::uint64_t>, 5>{
           {{0x1000, 1}, {0x10FF, 1}, {0xF00, 0x101}, {0xF00, 0x1000}, {0x1080, 0x1000}}}) {
    const auto result = table.add(at(base), length, MemoryKind::kHost, Access::kNone);
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code(), Code::kAlreadyExists);
    EXPECT_NE(result.error().detail().find("0x1000, 0x1100"), std::string::npos);
  }
  EXPECT_TRUE(table.add(at(0x1100), 0x100, MemoryKind::kHost, Access::kNone));
  EXPECT_TRUE(table.add(at(0xF00), 0x100, MemoryKind::kHost, Access::kNone));
}

TEST(RegionTable, RefusesNonsense) {
  RegionTable table;
  EXPECT_EQ(table.add(nullptr, 1, MemoryKind::kHost, Access::kNone).error().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(table.add(at(1), 0, MemoryKind::kHost, Access::kNone).error().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(table.add(at(16), ~std::uint64_t{0}, MemoryKind::kHost, Access::kNone).error().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(table.remove(at(0x1000)).code(), Code::kNotRegistered);
}

TEST(RegionTable, AStaleReferenceNeverMatchesAgain) {
  RegionTable table;
  const RegionRef old = *table.add(at(0x1000), 0x100, MemoryKind::kHost, Access::kNone);
  const auto removals = table.removals();
  ASSERT_TRUE(table.remove(at(0x1000)).is_ok());
  EXPECT_EQ(table.removals(), removals + 1);
  EXPECT_EQ(table.find(old), nullptr);
  const RegionRef again = *table.add(at(0x1000), 0x100, MemoryKind::kHost, Access::kNone);
  EXPECT_EQ(again.slot, old.slot);
  EXPECT_GT(again.generation, old.generation);
  EXPECT_EQ(table.find(old), nullptr);
  EXPECT_EQ(table.find({.slot = again.slot, .generation = 0}), nullptr);
  EXPECT_EQ(table.find({.slot = 99, .generation = 1}), nullptr);
}

TEST(RegionTable, ListsByAddress) {
  RegionTable table;
  for (const std::uintptr_t base : {0x3000, 0x1000, 0x2000})
    ASSERT_TRUE(table.add(at(base), 1, MemoryKind::kHost, Access::kNone));
  const auto list = table.list();
  ASSERT_EQ(list.size(), 3U);
  EXPECT_EQ(list[0].base, at(0x1000));
  EXPECT_EQ(list[2].base, at(0x3000));
}

}  // namespace
}  // namespace kvmend::memory
