#include "memory/grant_table.h"

#include <gtest/gtest.h>

#include <array>

#include "base/config.h"

namespace kvmend::memory {
namespace {

using namespace std::chrono_literals;
using wire::WireSlice;

constexpr Time kNow{10s};
constexpr Incarnation kWriter{77};

class GrantTableTest : public testing::Test {
 protected:
  Grant grant_of(std::vector<std::uint32_t> pages) const {
    return {.room = RoomId{5},
            .writer = kWriter,
            .expires = kNow + 60s,
            .components = {{.buffers = {{.region = ref_, .base_offset = 100, .item_bytes = 10}},
                            .pages = std::move(pages)}}};
  }
  Code resolve(GrantId id, std::vector<WireSlice> slices, Access want = Access::kRemoteWrite,
               Incarnation writer = kWriter, Time now = kNow) {
    return grants_.resolve(id, want, writer, slices, now, where_, &argument_).code();
  }
  WireSlice slice(std::uint64_t offset, std::uint32_t length) const {
    return {.region = ref_, .offset = offset, .length = length};
  }

  std::array<std::byte, 1000> memory_{};
  RegionTable regions_;
  RegionRef ref_ = *regions_.add(memory_.data(), memory_.size(), MemoryKind::kHost, Access::kNone);
  GrantTable grants_{regions_, 0xFFFF'FFFF'FFFF'FFF0};
  std::vector<iovec> where_;
  std::uint32_t argument_ = 99;
};

TEST_F(GrantTableTest, CoversItsPagesAndNothingElse) {
  const GrantId id = *grants_.issue(grant_of({1, 2, 5}));
  EXPECT_EQ(resolve(id, {slice(110, 20), slice(150, 10), slice(113, 4)}), Code::kOk);
  ASSERT_EQ(where_.size(), 3U);
  EXPECT_EQ(where_[1].iov_base, memory_.data() + 150);
  EXPECT_EQ(where_[1].iov_len, 10U);
  for (const WireSlice& bad : {slice(109, 2), slice(129, 2), slice(120, 11), slice(100, 1),
                               slice(160, 1), slice(0, 1), slice(110, 50)}) {
    EXPECT_EQ(resolve(id, {slice(110, 1), bad}), Code::kPermissionDenied) << bad.offset;
    EXPECT_EQ(argument_, 1U);
    EXPECT_TRUE(where_.empty());
  }
  EXPECT_EQ(resolve(id, {slice(999, 2)}), Code::kOutOfRange);
  EXPECT_EQ(resolve(id, {slice(~std::uint64_t{0}, 2)}), Code::kOutOfRange);
  EXPECT_EQ(resolve(id, {{{ref_.slot, ref_.generation + 1}, 110, 1}}), Code::kNotRegistered);
}

// Pools of layer groups share one buffer, with other page sizes: each is looked at.
TEST_F(GrantTableTest, BuffersMayOverlap) {
  Grant grant = grant_of({0, 1, 2, 3, 4, 5, 6, 7, 8});  // [100, 190)
  grant.components.push_back({.buffers = {{.region = ref_, .base_offset = 110, .item_bytes = 15}},
                              .pages = {0}});  // [110, 125)
  grant.components.push_back({.buffers = {{.region = ref_, .base_offset = 150, .item_bytes = 100}},
                              .pages = {0}});  // [150, 250)
  const GrantId id = *grants_.issue(grant);
  EXPECT_EQ(resolve(id, {slice(140, 10), slice(112, 3), slice(115, 20), slice(185, 20)}),
            Code::kOk);
  EXPECT_EQ(resolve(id, {slice(140, 60)}), Code::kPermissionDenied);  // in no single buffer
  EXPECT_TRUE(grants_.note_landed(id, std::array{slice(112, 3), slice(185, 20)}));
  EXPECT_EQ(grants_.find(id)->landed_bytes, (std::vector<std::uint64_t>{3, 0, 20}));
}

TEST_F(GrantTableTest, BelongsToOneWriterAndOneKindOfAccess) {
  const GrantId id = *grants_.issue(grant_of({1}));
  EXPECT_EQ(resolve(id, {slice(110, 1)}, Access::kRemoteWrite, Incarnation{78}),
            Code::kPermissionDenied);
  EXPECT_EQ(resolve(id, {slice(110, 1)}, Access::kRemoteRead), Code::kPermissionDenied);
}

TEST_F(GrantTableTest, TellsOfItsFirstUseOnce) {
  std::vector<RoomId> told;
  grants_.set_on_first_use([&](const Grant& grant) { told.push_back(grant.room); });
  const GrantId id = *grants_.issue(grant_of({1}));
  EXPECT_EQ(resolve(id, {slice(109, 1)}), Code::kPermissionDenied);
  EXPECT_EQ(resolve(id, {slice(110, 1)}, Access::kRemoteWrite, Incarnation{78}),
            Code::kPermissionDenied);
  EXPECT_TRUE(told.empty());
  EXPECT_EQ(resolve(id, {slice(110, 1)}), Code::kOk);
  EXPECT_EQ(resolve(id, {slice(111, 1)}), Code::kOk);
  EXPECT_EQ(told, std::vector{RoomId{5}});
}

TEST_F(GrantTableTest, EndsAtOnceAndRemembersHow) {
  const GrantId done = *grants_.issue(grant_of({1}));
  const GrantId revoked = *grants_.issue(grant_of({2}));
  EXPECT_TRUE(grants_.still_allowed(done, kNow, regions_.removals()));
  EXPECT_TRUE(grants_.end(done, GrantEnd::kCompleted));
  EXPECT_FALSE(grants_.end(done, GrantEnd::kRevoked));
  EXPECT_TRUE(grants_.end(revoked, GrantEnd::kRevoked));
  EXPECT_FALSE(grants_.still_allowed(done, kNow, regions_.removals()));
  EXPECT_EQ(resolve(done, {slice(110, 1)}), Code::kAlreadyExists);
  EXPECT_EQ(resolve(revoked, {slice(120, 1)}), Code::kPermissionDenied);
  EXPECT_EQ(resolve(GrantId{12345}, {slice(110, 1)}), Code::kPermissionDenied);
  EXPECT_FALSE(grants_.end(kStandingGrant, GrantEnd::kRevoked));
}

TEST_F(GrantTableTest, ForgetsTheOldestEndedGrants) {
  const GrantId first = *grants_.issue(grant_of({1}));
  grants_.end(first, GrantEnd::kCompleted);
  for (std::size_t i = 0; i < config::kEndedGrantsRemembered; ++i)
    grants_.end(*grants_.issue(grant_of({1})), GrantEnd::kRevoked);
  EXPECT_EQ(grants_.ended(first), GrantEnd::kUnknown);
}

TEST_F(GrantTableTest, ExpiresByTheGrantorsClock) {
  Grant early = grant_of({1});
  early.expires = kNow + 1s;
  Grant never = grant_of({2});
  never.expires = kForever;
  const GrantId a = *grants_.issue(early);
  const GrantId b = *grants_.issue(never);
  EXPECT_EQ(grants_.next_expiry(), kNow + 1s);
  // Before anybody swept it.
  EXPECT_EQ(resolve(a, {slice(110, 1)}, Access::kRemoteWrite, kWriter, kNow + 1s),
            Code::kPermissionDenied);
  EXPECT_FALSE(grants_.still_allowed(a, kNow + 1s, regions_.removals()));
  EXPECT_TRUE(grants_.expire(kNow).empty());
  const auto expired = grants_.expire(kNow + 1s);
  ASSERT_EQ(expired.size(), 1U);
  EXPECT_EQ(expired[0].id, a);
  EXPECT_EQ(grants_.ended(a), GrantEnd::kExpired);
  EXPECT_EQ(grants_.next_expiry(), kForever);
  EXPECT_EQ(resolve(b, {slice(120, 1)}, Access::kRemoteWrite, kWriter, kNow + 100h), Code::kOk);
}

TEST_F(GrantTableTest, ADeregisteredRegionIsGoneForItsGrants) {
  const GrantId id = *grants_.issue(grant_of({1}));
  const auto removals = regions_.removals();
  ASSERT_TRUE(regions_.remove(memory_.data()).is_ok());
  EXPECT_FALSE(grants_.still_allowed(id, kNow, removals));
  EXPECT_EQ(resolve(id, {slice(110, 1)}), Code::kNotRegistered);
  ASSERT_TRUE(regions_.add(memory_.data(), memory_.size(), MemoryKind::kHost, Access::kReadWrite));
  EXPECT_EQ(resolve(id, {slice(110, 1)}), Code::kNotRegistered);
}

TEST_F(GrantTableTest, TheStandingGrantFollowsTheRegionsAccess) {
  std::array<std::byte, 64> open{};
  const RegionRef ref =
      *regions_.add(open.data(), open.size(), MemoryKind::kHost, Access::kRemoteRead);
  EXPECT_EQ(resolve(kStandingGrant, {{ref, 0, 64}}, Access::kRemoteRead), Code::kOk);
  EXPECT_EQ(where_[0].iov_base, open.data());
  EXPECT_EQ(resolve(kStandingGrant, {{ref, 0, 64}}), Code::kPermissionDenied);
  EXPECT_EQ(resolve(kStandingGrant, {{ref, 1, 64}}, Access::kRemoteRead), Code::kOutOfRange);
  EXPECT_EQ(resolve(kStandingGrant, {slice(0, 1)}, Access::kRemoteRead), Code::kPermissionDenied);
  EXPECT_TRUE(grants_.still_allowed(kStandingGrant, kNow, regions_.removals()));
}

TEST_F(GrantTableTest, CountsLandedBytesOncePerChunk) {
  Grant grant = grant_of({1, 2});
  grant.components.push_back(
      {.buffers = {{.region = ref_, .base_offset = 500, .item_bytes = 8}}, .pages = {0}});
  const GrantId id = *grants_.issue(grant);
  const std::array slices = {slice(110, 20), slice(500, 8)};
  EXPECT_TRUE(grants_.note_landed(id, slices, kWriter, ChunkId{1}));
  EXPECT_FALSE(grants_.note_landed(id, slices, kWriter, ChunkId{1}));
  EXPECT_EQ(grants_.find(id)->landed_bytes, (std::vector<std::uint64_t>{20, 8}));
  EXPECT_TRUE(grants_.note_landed(id, slices, kWriter, ChunkId{2}));
  EXPECT_EQ(grants_.find(id)->landed_bytes, (std::vector<std::uint64_t>{40, 16}));
  EXPECT_FALSE(grants_.note_landed(GrantId{3}, slices));
}

// Every engine numbers its chunks from 1: under a grant that anybody may use, one writer's chunk
// must not pass for another's.
TEST_F(GrantTableTest, KnowsLandedChunksByTheirWriter) {
  Grant open_to_all = grant_of({1, 2});
  open_to_all.writer = {};
  const GrantId id = *grants_.issue(open_to_all);
  const std::array slices = {slice(110, 20)};
  const Incarnation other{kWriter.value + 1};
  EXPECT_FALSE(grants_.has_landed(id, kWriter, ChunkId{1}));
  EXPECT_TRUE(grants_.note_landed(id, slices, kWriter, ChunkId{1}));
  EXPECT_TRUE(grants_.has_landed(id, kWriter, ChunkId{1}));
  EXPECT_FALSE(grants_.has_landed(id, kWriter, ChunkId{2}));
  EXPECT_FALSE(grants_.has_landed(id, other, ChunkId{1}));
  EXPECT_TRUE(grants_.note_landed(id, slices, other, ChunkId{1}));
  EXPECT_EQ(grants_.find(id)->landed_bytes, (std::vector<std::uint64_t>{40}));
  EXPECT_FALSE(grants_.has_landed(kStandingGrant, kWriter, ChunkId{1}));
  grants_.end(id, GrantEnd::kRevoked);
  EXPECT_FALSE(grants_.has_landed(id, kWriter, ChunkId{1}));
}

TEST_F(GrantTableTest, IdsAreNeverTheStandingGrantNorZero) {
  for (int i = 0; i < 40; ++i) EXPECT_GT(grants_.issue(grant_of({1}))->value, 1U);  // wraps around
}

TEST_F(GrantTableTest, RefusesGrantsThatCannotHold) {
  EXPECT_EQ(grants_.issue(grant_of({2, 1})).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(grants_.issue(grant_of({1, 1})).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(grants_.issue(grant_of({90})).error().code(), Code::kOutOfRange);
  EXPECT_TRUE(grants_.issue(grant_of({89})));
  Grant bad = grant_of({1});
  bad.components[0].buffers[0].item_bytes = 0;
  EXPECT_EQ(grants_.issue(bad).error().code(), Code::kInvalidArgument);
  bad = grant_of({1});
  bad.components[0].buffers[0].base_offset = 1001;
  EXPECT_EQ(grants_.issue(bad).error().code(), Code::kOutOfRange);
  bad.components[0].buffers[0].region.generation = 9;
  EXPECT_EQ(grants_.issue(bad).error().code(), Code::kNotRegistered);
  bad = grant_of({1});
  bad.access = Access::kNone;
  EXPECT_EQ(grants_.issue(bad).error().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace kvmend::memory
