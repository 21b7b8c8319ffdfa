#include "health/transition_table.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace kvmend::health {
namespace {

template <class F>
void for_every_pair(F&& check) {
  for (std::size_t s = 0; s < kStateCount; ++s) {
    for (std::size_t e = 0; e < kEventCount; ++e) {
      const auto state = static_cast<State>(s);
      const auto event = static_cast<Event>(e);
      SCOPED_TRACE(std::string(state_name(state)) + " + " + std::string(event_name(event)));
      check(transition(state, event));
    }
  }
}

// The next state of every pair, written down a second time: rows are events in the order of the
// enum, columns are states c(onnecting) h(ealthy) s(uspect) f(ailed) p(robing) r(etired).
TEST(TransitionTable, EveryPairLeadsWhereTheDesignSays) {
  constexpr std::string_view kStates = "chsfpr";
  constexpr std::string_view kExpected[kEventCount] = {
      "hhsfpr",  // connected
      "chhfpr",  // life
      "cssffr",  // strike
      "ffffFr",  // down
      "cccfpr",  // peer_restarted
      "chsfpr",  // peer_hello
      "chsfpr",  // peer_claimed
      "chsfpr",  // probe_started
      "chsppr",  // probe_passed
      "chsffr",  // probe_failed
      "chsfhr",  // trial_passed
      "chsfpc",  // demand
      "rrrrrr",  // idle
      "chsppc",  // new_registration
      "rrrrrr",  // retire
  };
  for_every_pair([&](const Transition& row) {
    const auto column = static_cast<std::size_t>(row.from);
    const char wanted =
        static_cast<char>(std::tolower(kExpected[static_cast<std::size_t>(row.event)][column]));
    EXPECT_EQ(kStates[static_cast<std::size_t>(row.to)], wanted);
  });
}

TEST(TransitionTable, OnlyProofOfLifeLiftsABlacklist) {
  for_every_pair([](const Transition& row) {
    if (row.from == State::kFailed && row.to == State::kProbing) {
      EXPECT_TRUE(row.event == Event::kProbePassed || row.event == Event::kNewRegistration);
    }
    if (row.from == State::kFailed) {
      EXPECT_TRUE(row.to == State::kFailed || row.to == State::kProbing ||
                  row.to == State::kRetired);
    }
    if (row.from == State::kProbing && row.to == State::kHealthy) {
      EXPECT_EQ(row.event, Event::kTrialPassed);
    }
  });
}

TEST(TransitionTable, AnnouncementsFitTheStates) {
  for_every_pair([](const Transition& row) {
    EXPECT_EQ(row.actions.has(Action::kAnnounceBlacklisted),
              !is_blacklisted(row.from) && row.to == State::kFailed);
    EXPECT_EQ(row.actions.has(Action::kAnnounceRecovered),
              row.from == State::kProbing && row.to == State::kHealthy);
  });
}

TEST(TransitionTable, EnteringAStateDoesWhatItNeeds) {
  for_every_pair([](const Transition& row) {
    if (row.to == State::kFailed && row.from != State::kFailed) {
      EXPECT_TRUE(row.actions.has(Action::kScheduleProbe));
      EXPECT_TRUE(row.actions.has(Action::kDropLanes));
    }
    if (row.to == State::kRetired && row.from != State::kRetired) {
      EXPECT_TRUE(row.actions.has(Action::kFree));
      EXPECT_TRUE(row.actions.has(Action::kDropLanes));
      EXPECT_TRUE(row.actions.has(Action::kCancelProbes));
    }
    if (row.from == State::kFailed && row.to == State::kProbing) {
      EXPECT_TRUE(row.actions.has(Action::kReconnect));
      EXPECT_TRUE(row.actions.has(Action::kReleaseParked));
    }
    // A blacklisted session opens no epoch but by its promotion or for a new incarnation's trial.
    if (row.to == State::kFailed || row.to == State::kRetired) {
      EXPECT_FALSE(row.actions.has(Action::kReconnect));
    }
    if (row.event == Event::kPeerRestarted && row.from != State::kRetired) {
      EXPECT_TRUE(row.actions.has(Action::kFailOldPlan));
    }
    if (row.from == State::kHealthy &&
        (row.event == Event::kProbeStarted || row.event == Event::kProbePassed ||
         row.event == Event::kProbeFailed)) {
      EXPECT_TRUE(row.to == State::kHealthy && row.actions.empty());
    }
  });
}

TEST(TransitionTable, NamesAreDistinct) {
  std::set<std::string_view> names;
  for (std::size_t s = 0; s < kStateCount; ++s) names.insert(state_name(static_cast<State>(s)));
  for (std::size_t e = 0; e < kEventCount; ++e) names.insert(event_name(static_cast<Event>(e)));
  EXPECT_EQ(names.size(), kStateCount + kEventCount);
}

}  // namespace
}  // namespace kvmend::health
