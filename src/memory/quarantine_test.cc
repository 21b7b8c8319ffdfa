#include "memory/quarantine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>

namespace kvmend::memory {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

constexpr Time kStart{1'000s};
const std::string kA = "10.0.0.1:1";
const std::string kB = "10.0.0.2:1";
constexpr Incarnation kOld{7};
constexpr Incarnation kNew{8};

struct Waiting : ::testing::Test {
  Quarantine quarantine{100, 0.25};
  std::vector<std::pair<std::uint64_t, Release>> released;

  Quarantine::Id hold(std::uint64_t pages, std::vector<Quarantine::Holder> holders,
                      Time fence_at = kForever, Time unproven_at = kForever) {
    return quarantine.hold(
        {.pages = pages,
         .holders = std::move(holders),
         .fence_at = fence_at,
         .unproven_at = unproven_at,
         .on_released = [this, pages](Release how) { released.emplace_back(pages, how); }});
  }
};

using Released = std::vector<std::pair<std::uint64_t, Release>>;

TEST_F(Waiting, EveryHolderMustBeProvenHarmless) {
  const auto id = hold(5, {{kA, kOld}, {kB, kOld}});
  EXPECT_FALSE(quarantine.on_drained(id, kA, kNew)) << "another process says nothing of it";
  EXPECT_TRUE(quarantine.on_drained(id, kA, kOld));
  EXPECT_FALSE(quarantine.on_drained(id, kA, kOld)) << "each of the ranks for itself";
  EXPECT_TRUE(released.empty());
  quarantine.on_incarnation(kB, kOld);  // it is the one that is known
  EXPECT_TRUE(released.empty());
  quarantine.on_incarnation(kB, {});  // dead
  EXPECT_EQ(released, (Released{{5, Release::kGone}}));
  EXPECT_EQ(quarantine.pages(), 0U);
}

TEST_F(Waiting, TimeAloneProvesNothing) {
  hold(5, {{kA, kOld}}, kStart);
  quarantine.expire(kStart + 24h);
  EXPECT_TRUE(released.empty());
  EXPECT_EQ(quarantine.fences_due(kStart - 1ns), std::vector<std::string>{});
  EXPECT_EQ(quarantine.next_due(kStart - 1ns), kStart);
  EXPECT_EQ(quarantine.fences_due(kStart), std::vector<std::string>{kA});
}

// A fence says nothing of writes into pages that were given to a room after it had begun.
TEST_F(Waiting, AFenceProvesOnlyWhatWasHeldBefore) {
  hold(5, {{kA, kOld}}, kStart);
  const auto last = quarantine.last();
  hold(6, {{kA, kOld}}, kStart);
  quarantine.on_fenced(kA, last);
  EXPECT_EQ(released, (Released{{5, Release::kFenced}}));
  EXPECT_EQ(quarantine.size(), 1U);
}

TEST_F(Waiting, WithoutAnyProofOnlyAConfiguredTimeReleases) {
  hold(5, {{kA, kOld}}, kStart, kStart + 10s);
  quarantine.expire(kStart + 10s - 1ns);
  EXPECT_TRUE(released.empty());
  EXPECT_EQ(quarantine.next_due(kStart), kStart + 10s);
  quarantine.expire(kStart + 10s);
  EXPECT_EQ(released, (Released{{5, Release::kUnproven}}));
}

TEST_F(Waiting, OverTheCapNewRoomsAreRefusedWithBothFigures) {
  const auto id = hold(26, {{kA, kOld}});
  EXPECT_EQ(quarantine.admits().code(), Code::kResourceExhausted);
  EXPECT_THAT(quarantine.admits().detail(), HasSubstr("26 of 100 pages"));
  EXPECT_THAT(quarantine.admits().detail(), HasSubstr("at most 25"));
  quarantine.on_drained(id, kA, kOld);
  EXPECT_TRUE(quarantine.admits().is_ok());
  hold(25, {{kA, kOld}});
  EXPECT_TRUE(quarantine.admits().is_ok()) << "the cap itself may be held";
}

TEST_F(Waiting, ANewRegistrationOfTheSameProcessCounts) {
  hold(5, {{kA, kOld}});
  quarantine.on_registered_anew(kB);
  EXPECT_TRUE(released.empty());
  quarantine.on_registered_anew(kA);
  EXPECT_EQ(released, (Released{{5, Release::kGone}}));
}

// Random histories against the definition: pages are free exactly when each of their holders has
// drained, is dead, or was fenced off after they had been held.
RC_GTEST_PROP(Quarantine, FreesPagesWithTheLastProofAndNeverBefore, ()) {
  struct Model {
    std::map<std::pair<std::string, std::uint64_t>, bool> proven;
    std::uint64_t pages = 0;
    bool free = false;
  };
  Quarantine quarantine(1'000, 0.5);
  std::map<Quarantine::Id, Model> all;
  const std::vector<std::string> sessions{"a", "b", "c"};
  const auto prove = [&](auto&& which) {
    for (auto& [id, model] : all)
      for (auto& [holder, proven] : model.proven)
        if (which(id, holder.first, holder.second)) proven = true;
  };
  const int steps = *rc::gen::inRange(1, 40);
  for (int step = 0; step < steps; ++step) {
    const std::string session = *rc::gen::elementOf(sessions);
    const auto incarnation = *rc::gen::inRange<std::uint64_t>(1, 4);
    switch (*rc::gen::inRange(0, 5)) {
      case 0:
      case 1: {
        Model model{.pages = *rc::gen::inRange<std::uint64_t>(0, 50)};
        std::vector<Quarantine::Holder> holders;
        for (const std::string& one : sessions)
          if (*rc::gen::arbitrary<bool>() || (holders.empty() && one == "c")) {
            holders.push_back({one, Incarnation(incarnation)});
            model.proven[{one, incarnation}] = false;
          }
        const auto id = quarantine.last() + 1;
        all[id] = model;
        RC_ASSERT(
            quarantine.hold(
                {.pages = model.pages, .holders = holders, .on_released = [&all, id](Release) {
                   RC_ASSERT(!all[id].free);
                   all[id].free = true;
                 }}) == id);
        break;
      }
      case 2:
        if (!all.empty()) {
          const auto id = *rc::gen::inRange<Quarantine::Id>(1, quarantine.last() + 1);
          prove([&](auto of, const auto& s, auto i) {
            return of == id && s == session && i == incarnation;
          });
          quarantine.on_drained(id, session, Incarnation(incarnation));
        }
        break;
      case 3:
        prove([&](auto, const auto& s, auto i) { return s == session && i != incarnation; });
        quarantine.on_incarnation(session, Incarnation(incarnation));
        break;
      default: {
        const auto last = *rc::gen::inRange<Quarantine::Id>(0, quarantine.last() + 1);
        prove([&](auto id, const auto& s, auto) { return id <= last && s == session; });
        quarantine.on_fenced(session, last);
      }
    }
    std::uint64_t held = 0;
    for (const auto& [id, model] : all) {
      const bool proven =
          std::ranges::all_of(model.proven, [](const auto& one) { return one.second; });
      RC_ASSERT(model.free == proven);
      if (!proven) held += model.pages;
    }
    RC_ASSERT(quarantine.pages() == held);
    RC_ASSERT(quarantine.admits().is_ok() == (held <= 500));
  }
}

}  // namespace
}  // namespace kvmend::memory
