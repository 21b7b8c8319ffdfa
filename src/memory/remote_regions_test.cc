#include "memory/remote_regions.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>

#include "base/config.h"

namespace kvmend::memory {
namespace {

using wire::RegionEntry;
using wire::RegionTablePart;

RegionEntry entry(std::uint32_t slot, std::uint64_t base, std::uint64_t length) {
  return {.ref = {.slot = slot, .generation = 1},
          .base = base,
          .length = length,
          .access = Access::kReadWrite};
}

TEST(RemoteRegions, TranslatesInsideOneRegion) {
  RemoteRegionsBuilder builder;
  const auto table = builder.apply(
      {.version = 3, .full = true, .added = {entry(1, 0x2000, 0x100), entry(0, 0x1000, 0x100)}});
  ASSERT_NE(table, nullptr);
  EXPECT_EQ(table->version(), 3U);
  EXPECT_EQ(table->list()[0].base, 0x1000U);
  const auto place = table->translate(0x2010, 0xF0);
  ASSERT_TRUE(place);
  EXPECT_EQ(place->region.slot, 1U);
  EXPECT_EQ(place->offset, 0x10U);
  EXPECT_EQ(table->translate(0x2010, 0xF1).error().code(), Code::kOutOfRange);
  EXPECT_EQ(table->translate(0x2010, ~std::uint64_t{0}).error().code(), Code::kOutOfRange);
  EXPECT_EQ(table->translate(0x1100, 1).error().code(), Code::kNotRegistered);
  EXPECT_EQ(table->translate(0, 1).error().code(), Code::kNotRegistered);
  EXPECT_EQ(table->translate(0x2000, 0).error().code(), Code::kInvalidArgument);
}

TEST(RemoteRegions, WaitsForAllPartsAndAFullTableReplaces) {
  RemoteRegionsBuilder builder;
  EXPECT_EQ(builder.apply({.version = 1, .full = true, .more = true, .added = {entry(0, 0, 8)}}),
            nullptr);
  EXPECT_TRUE(builder.error().is_ok());
  const auto table = builder.apply({.version = 1, .added = {entry(1, 8, 8)}});
  ASSERT_NE(table, nullptr);
  EXPECT_EQ(table->size(), 2U);
  const auto next = builder.apply({.version = 1, .full = true, .added = {entry(0, 0x100, 8)}});
  ASSERT_NE(next, nullptr);
  EXPECT_EQ(next->size(), 1U);
  EXPECT_EQ(table->size(), 2U);  // snapshots don't change
  EXPECT_NE(builder.apply({.version = 1, .full = true}), nullptr);
}

TEST(RemoteRegions, AppliesChangesOnlyToTheVersionTheyName) {
  RemoteRegionsBuilder builder;
  EXPECT_EQ(builder.apply({.version = 2, .base_version = 1}), nullptr);
  EXPECT_EQ(builder.error().code(), Code::kUnavailable);
  ASSERT_NE(builder.apply({.version = 1, .full = true, .added = {entry(0, 0, 8), entry(1, 8, 8)}}),
            nullptr);
  const auto table = builder.apply(
      {.version = 2, .base_version = 1, .added = {entry(0, 4, 4)}, .removed = {0, 7}});
  ASSERT_NE(table, nullptr);
  EXPECT_EQ(table->size(), 2U);
  EXPECT_EQ(table->translate(0, 1).error().code(), Code::kNotRegistered);
  EXPECT_EQ(builder.apply({.version = 4, .base_version = 3}), nullptr);
}

TEST(RemoteRegions, KeepsWhatWasKnownWhenThePeerSendsNonsense) {
  RemoteRegionsBuilder builder;
  ASSERT_NE(builder.apply({.version = 1, .full = true, .added = {entry(0, 0x100, 8)}}), nullptr);
  const std::vector<RegionTablePart> nonsense = {
      {.version = 2, .full = true, .added = {entry(0, 0, 9), entry(1, 8, 8)}},  // overlap
      {.version = 2, .full = true, .added = {entry(0, 0, 8), entry(0, 8, 8)}},  // slot twice
      {.version = 2, .full = true, .added = {entry(0, ~std::uint64_t{0}, 8)}},  // wraps around
      {.version = 2, .full = true, .added = {entry(0, 0, 0)}},                  // empty
      {.version = 2, .base_version = 1, .added = {entry(0, 0, 8)}},             // slot in use
  };
  for (const auto& part : nonsense) {
    EXPECT_EQ(builder.apply(part), nullptr);
    EXPECT_EQ(builder.error().code(), Code::kProtocolError);
  }
  EXPECT_NE(builder.apply({.version = 2, .base_version = 1}), nullptr);
}

TEST(RemoteRegions, CapsTheTable) {
  RemoteRegionsBuilder builder;
  RegionTablePart part{.version = 1, .full = true, .more = true};
  part.added.resize(4096);
  std::uint32_t slot = 0;
  for (std::size_t sent = 0; sent <= config::kMaxRegions; sent += part.added.size()) {
    for (RegionEntry& e : part.added) {
      e = entry(slot, slot * 8ULL, 8);
      ++slot;
    }
    ASSERT_EQ(builder.apply(part), nullptr);
    part.full = false;
  }
  EXPECT_EQ(builder.error().code(), Code::kProtocolError);
}

TEST(RemoteRegions, AgreesWithALinearSearch) {
  EXPECT_TRUE(rc::check([] {
    RegionTablePart part{.version = 1, .full = true};
    std::uint64_t base = 0;
    for (int i = *rc::gen::inRange(0, 20); i > 0; --i) {
      base += *rc::gen::inRange<std::uint64_t>(0, 5);
      const auto length = *rc::gen::inRange<std::uint64_t>(1, 9);
      part.added.push_back(entry(static_cast<std::uint32_t>(i), base, length));
      base += length;
    }
    RemoteRegionsBuilder builder;
    const auto table = builder.apply(part);
    RC_ASSERT(table != nullptr);
    for (int i = 0; i < 50; ++i) {
      const auto address = *rc::gen::inRange<std::uint64_t>(0, base + 3);
      const auto length = *rc::gen::inRange<std::uint64_t>(1, 10);
      const auto home = std::ranges::find_if(part.added, [&](const RegionEntry& e) {
        return address >= e.base && address + length <= e.base + e.length;
      });
      const auto place = table->translate(address, length);
      RC_ASSERT(place.has_value() == (home != part.added.end()));
      if (place) RC_ASSERT(place->region == home->ref && place->offset == address - home->base);
    }
  }));
}

}  // namespace
}  // namespace kvmend::memory
