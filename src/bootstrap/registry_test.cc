#include "bootstrap/registry.h"

#include <gtest/gtest.h>

#include "bootstrap/memory_store.h"
#include "bootstrap/test_util.h"

namespace kvmend::bootstrap {
namespace {

using namespace std::chrono_literals;
using testing::sample;

class RegistryTest : public ::testing::Test {
 protected:
  Code put(const Registration& registration) {
    last = registry.register_rank(registration, now);
    return last.code();
  }
  Code code_of_topology(const Asker& asker) {
    const auto answer = registry.topology(asker);
    last = answer ? Status::ok() : answer.error();
    return last.code();
  }

  MemoryStore store;
  Registry registry{store};
  Time now = Time(1s);
  Asker us{.backend = "kvmend", .version = "0.1.0"};
  Asker stock;
  Status last;
};

TEST_F(RegistryTest, AnswersOnceAllRanksAreHere) {
  EXPECT_EQ(code_of_topology(us), Code::kUnavailable);
  EXPECT_EQ(last.detail(), "Prefill server not fully registered yet (0 workers registered).");
  EXPECT_EQ(put(sample(0, 2, 10)), Code::kOk);
  EXPECT_EQ(code_of_topology(us), Code::kUnavailable);
  EXPECT_EQ(registry.rank({.tp = 0}, us).error().code(), Code::kUnavailable);
  EXPECT_EQ(put(sample(1, 2, 11)), Code::kOk);
  EXPECT_EQ(code_of_topology(us), Code::kOk);
  EXPECT_EQ(registry.rank({.tp = 1}, us)->rank.rank_port, 7001);
  const auto unknown = registry.rank({.tp = 2}, us);
  EXPECT_EQ(unknown.error().code(), Code::kNotFound);
  EXPECT_EQ(unknown.error().detail(),
            "Bootstrap info not found for dp_rank=0 cp_rank=0 tp_rank=2 pp_rank=0");
}

// Case B3: registering twice is harmless, counts stay right. (The stock registry counts requests:
// there two PUTs of one rank of two look complete.)
TEST_F(RegistryTest, B3_RegisteringTwiceCountsOnce) {
  for (const std::uint64_t incarnation : {0ULL, 10ULL}) {
    MemoryStore own;
    Registry twice{own};
    for (int i = 0; i < 3; ++i)
      EXPECT_TRUE(twice.register_rank(sample(0, 2, incarnation), now).is_ok());
    EXPECT_EQ(twice.stats().ranks, 1U);
    EXPECT_EQ(twice.stats().registrations, 3U);
    EXPECT_EQ(twice.topology(incarnation == 0 ? stock : us).error().code(), Code::kUnavailable);
    EXPECT_EQ(twice.stats().replaced, 0U);
    EXPECT_EQ(twice.stats().epoch, 2U) << "nothing changed after the first";
  }
}

TEST_F(RegistryTest, ARestartedRankReplacesItsEntryAndTheOldOneCantComeBack) {
  ASSERT_EQ(put(sample(0, 1, 10)), Code::kOk);
  const auto before = registry.topology(us)->epoch;
  Registration restarted = sample(0, 1, 20);
  restarted.rank.rank_port = 8000;
  ASSERT_EQ(put(restarted), Code::kOk);
  EXPECT_EQ(registry.rank({}, us)->rank.rank_port, 8000);
  EXPECT_GT(registry.topology(us)->epoch, before);
  EXPECT_EQ(registry.stats().ranks, 1U);
  EXPECT_EQ(registry.stats().replaced, 1U);
  EXPECT_EQ(put(sample(0, 1, 10)), Code::kPeerRestarted) << "a late retry of the dead process";
  EXPECT_NE(last.detail().find("127.0.0.1:8000"), std::string::npos) << last.detail();
  EXPECT_EQ(registry.rank({}, us)->rank.rank_port, 8000);
}

TEST_F(RegistryTest, ARankOfAnotherTopologyIsRefusedWithTheDifference) {
  ASSERT_EQ(put(sample(0, 2, 10)), Code::kOk);
  EXPECT_EQ(put(sample(1, 4, 11)), Code::kUnavailable);
  EXPECT_NE(last.detail().find("attn_tp_size is 4 instead of 2"), std::string::npos);
  Registration pages = sample(1, 2, 11);
  pages.topology.page_size = 16;
  EXPECT_EQ(put(pages), Code::kUnavailable);
  EXPECT_NE(last.detail().find("page_size is 16 instead of 64"), std::string::npos);
  EXPECT_EQ(registry.stats().ranks, 1U);
  EXPECT_EQ(registry.stats().refused, 2U);
}

// SGLang's own two rules, with its texts.
TEST_F(RegistryTest, SglangsConsistencyRules) {
  ASSERT_EQ(put(sample(0, 2)), Code::kOk);
  Registration other = sample(1, 2);
  other.topology.decode_allocation_policy = "late";
  EXPECT_EQ(put(other), Code::kInvalidArgument);
  EXPECT_EQ(last.detail(), "Inconsistent prefill allocation policies");
  other = sample(1, 2);
  other.topology.spec_layout = "{}";
  EXPECT_EQ(put(other), Code::kInvalidArgument);
  EXPECT_EQ(last.detail(), "DeepSeek-V4.1 DSpark PD layout differs across prefill ranks");
}

TEST_F(RegistryTest, AnInstanceRestartedWithAnotherTopologyStartsOver) {
  ASSERT_EQ(put(sample(0, 2, 10)), Code::kOk);
  ASSERT_EQ(put(sample(1, 2, 11)), Code::kOk);
  ASSERT_EQ(put(sample(0, 4, 20)), Code::kOk);
  EXPECT_EQ(registry.stats().ranks, 1U);
  EXPECT_EQ(registry.stats().started_over, 1U);
  EXPECT_EQ(put(sample(1, 2, 11)), Code::kPeerRestarted) << "the old instance doesn't come back";
  EXPECT_EQ(put(sample(0, 2, 10)), Code::kPeerRestarted);
  for (int tp = 1; tp < 4; ++tp) EXPECT_EQ(put(sample(tp, 4, 20U + tp)), Code::kOk);
  EXPECT_EQ(registry.topology(us)->topology.attn_tp_size, 4);

  // The same without incarnations.
  MemoryStore own;
  Registry plain{own};
  EXPECT_TRUE(plain.register_rank(sample(0, 2), now).is_ok());
  EXPECT_TRUE(plain.register_rank(sample(0, 1), now).is_ok());
  EXPECT_EQ(plain.topology(stock)->topology.attn_tp_size, 1);
}

TEST_F(RegistryTest, MixedManagersAreRefusedNamingBothAndTheFix) {
  ASSERT_EQ(put(sample(0, 2, 10)), Code::kOk);
  EXPECT_EQ(put(sample(1, 2)), Code::kIncompatible);
  for (const char* part :
       {"kvmend 0.1.0", "SGLang's stock manager", "--disaggregation-transfer-backend", "tp_rank=1"})
    EXPECT_NE(last.detail().find(part), std::string::npos) << part;
  ASSERT_EQ(put(sample(1, 2, 11)), Code::kOk);
  EXPECT_EQ(code_of_topology(stock), Code::kIncompatible) << "a stock decode";
  EXPECT_NE(last.detail().find("decode runs SGLang's stock manager"), std::string::npos);
  EXPECT_EQ(registry.rank({}, stock).error().code(), Code::kIncompatible);

  MemoryStore own;
  Registry plain{own};
  ASSERT_TRUE(plain.register_rank(sample(0, 1), now).is_ok());
  EXPECT_TRUE(plain.topology(stock).has_value());
  EXPECT_EQ(plain.topology(us).error().code(), Code::kIncompatible);
}

TEST_F(RegistryTest, LeasesEndWithoutTrafficAndTheInstanceIsForgotten) {
  Registration leased = sample(0, 1, 10);
  leased.rank.lease = 30s;
  ASSERT_EQ(put(leased), Code::kOk);
  now += 20s;
  ASSERT_EQ(put(leased), Code::kOk);
  now += 20s;
  registry.expire(now);
  EXPECT_EQ(code_of_topology(us), Code::kOk) << "renewed";
  now += 11s;
  registry.expire(now);
  EXPECT_EQ(registry.stats().ranks, 0U);
  EXPECT_EQ(registry.stats().expired_ranks, 1U);
  EXPECT_EQ(put(leased), Code::kOk) << "expired isn't retired: the same process may come back";
  now += 31s;
  registry.expire(now);
  EXPECT_EQ(put(sample(1, 2)), Code::kOk) << "another instance, manager and topology may follow";
}

// Case B4.
TEST_F(RegistryTest, B4_RoomsExpireAndAreCounted) {
  registry.register_room({.room = RoomId(5), .dp_rank = 2}, now);
  const std::vector<RoomId> asked{RoomId(5), RoomId(6)};
  EXPECT_EQ(registry.rooms(asked, now), (RoomRanks{{RoomId(5), 2}}));
  now += limits::kRoomLifetime;
  EXPECT_TRUE(registry.rooms(asked, now).empty());
  registry.expire(now);
  EXPECT_EQ(registry.stats().rooms, 0U);
  EXPECT_EQ(registry.stats().expired_rooms, 1U);
}

}  // namespace
}  // namespace kvmend::bootstrap
