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
      {.version = 3, .first = true, .added = {entry(1, 0x2000, 0x100), entry(0, 0x1000, 0x100)}});
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
  EXPECT_EQ(builder.apply({.version = 1, .first = true, .more = true, .added = {entry(0, 0, 8)}}),
            nullptr);
  EXPECT_TRUE(builder.error().is_ok());
  const auto table = builder.apply({.version = 1, .added = {entry(1, 8, 8)}});
  ASSERT_NE(table, nullptr);
  EXPECT_EQ(table->size(), 2U);
  const auto next = builder.apply({.version = 1, .first = true, .added = {entry(0, 0x100, 8)}});
  ASSERT_NE(next, nullptr);
  EXPECT_EQ(next->size(), 1U);
  EXPECT_EQ(table->size(), 2U);  // snapshots don't change
  EXPECT_NE(builder.apply({.version = 1, .first = true}), nullptr);
}

// Changes to a table used to be copied and sorted one by one: a few bytes each, milliseconds of the
// loop. There are none any more.
TEST(RemoteRegions, RefusesWhatDoesNotBeginATable) {
  RemoteRegionsBuilder builder;
  const auto refused = [&](const RegionTablePart& part) {
    return builder.apply(part) == nullptr && builder.error().code() == Code::kProtocolError;
  };
  EXPECT_TRUE(refused({.version = 2}));
  ASSERT_NE(builder.apply({.version = 1, .first = true, .added = {entry(0, 0, 8)}}), nullptr);
  EXPECT_TRUE(refused({.version = 1}));
  EXPECT_TRUE(refused({.version = 2, .added = {entry(1, 8, 8)}}));
  EXPECT_EQ(builder.apply({.version = 3, .first = true, .more = true}), nullptr);
  EXPECT_TRUE(refused({.version = 4, .added = {entry(1, 8, 8)}}));
  EXPECT_TRUE(refused({.version = 3}));  // and nothing of the broken one is left
}

// However small the peer cuts its table, a part costs what it holds: 65,536 parts took minutes when
// each was sorted with all before it.
TEST(RemoteRegions, ATableInItsSmallestPartsIsCheap) {
  RemoteRegionsBuilder builder;
  RegionTablePart part{.version = 1, .first = true, .more = true};
  std::shared_ptr<const RemoteRegions> table;
  for (std::uint32_t slot = 0; slot < config::kMaxRegions; ++slot) {
    part.added = {entry(slot, slot * 8ULL, 8)};
    part.more = slot + 1 < config::kMaxRegions;
    table = builder.apply(part);
    part.first = false;
  }
  ASSERT_NE(table, nullptr);
  EXPECT_EQ(table->size(), config::kMaxRegions);
}

TEST(RemoteRegions, KeepsWhatWasKnownWhenThePeerSendsNonsense) {
  RemoteRegionsBuilder builder;
  ASSERT_NE(builder.apply({.version = 1, .first = true, .added = {entry(0, 0x100, 8)}}), nullptr);
  const std::vector<RegionTablePart> nonsense = {
      {.version = 2, .first = true, .added = {entry(0, 0, 9), entry(1, 8, 8)}},  // overlap
      {.version = 2, .first = true, .added = {entry(0, 0, 8), entry(0, 8, 8)}},  // slot twice
      {.version = 2, .first = true, .added = {entry(0, ~std::uint64_t{0}, 8)}},  // wraps around
      {.version = 2, .first = true, .added = {entry(0, 0, 0)}},                  // empty
  };
  for (const auto& part : nonsense) {
    EXPECT_EQ(builder.apply(part), nullptr);
    EXPECT_EQ(builder.error().code(), Code::kProtocolError);
  }
  EXPECT_NE(builder.apply({.version = 2, .first = true}), nullptr);
}

TEST(RemoteRegions, CapsTheTable) {
  RemoteRegionsBuilder builder;
  RegionTablePart part{.version = 1, .first = true, .more = true};
  part.added.resize(4096);
  std::uint32_t slot = 0;
  for (std::size_t sent = 0; sent <= config::kMaxRegions; sent += part.added.size()) {
    for (RegionEntry& e : part.added) {
      e = entry(slot, slot * 8ULL, 8);
      ++slot;
    }
    ASSERT_EQ(builder.apply(part), nullptr);
    part.first = false;
  }
  EXPECT_EQ(builder.error().code(), Code::kProtocolError);
}

TEST(RemoteRegions, AgreesWithALinearSearch) {
  EXPECT_TRUE(rc::check([] {
    RegionTablePart part{.version = 1, .first = true};
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
