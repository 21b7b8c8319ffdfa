#include "health/probe_schedule.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <map>
#include <queue>
#include <vector>

#include "health/probe_backoff.h"

namespace kvmend::health {
namespace {

TEST(ProbeBackoff, DoublesWithinJitterUpToItsMaximum) {
  EXPECT_TRUE(rc::check([](std::uint64_t seed) {
    const HealthOptions o;
    ProbeBackoff backoff(o);
    JitterSource jitter(seed);
    Duration nominal = o.probe_first_delay;
    for (int i = 0; i < 20; ++i) {
      RC_ASSERT(backoff.nominal() == nominal);
      const Duration interval = backoff.next(jitter.next());
      RC_ASSERT(interval >= nominal * 79 / 100);
      RC_ASSERT(interval <= std::min(nominal * 121 / 100, o.probe_max_interval));
      RC_ASSERT(backoff.nominal() >= nominal);
      nominal = std::min(nominal * 2, o.probe_max_interval);
    }
  }));
}

TEST(ProbeBudget, DemandGoesFirstAndNobodyStarves) {
  const HealthOptions o;
  ProbeBudget budget(o);
  const Time now = Time{} + 1h;
  for (std::uint64_t i = 1; i <= 10; ++i) budget.schedule(SessionKey{i}, now - 1s, false);
  for (std::uint64_t i = 101; i <= 110; ++i) budget.schedule(SessionKey{i}, now, true);
  std::vector<std::uint64_t> order;
  for (int i = 0; i < 15; ++i) {
    const auto key = budget.take(now);
    ASSERT_TRUE(key);
    order.push_back(key->value);
  }
  const std::vector<std::uint64_t> expected{101, 102, 103, 104, 1, 105, 106, 107,
                                            108, 2,   109, 110, 3, 4,   5};
  EXPECT_EQ(order, expected);
}

TEST(ProbeBudget, HonoursRateAndPermits) {
  HealthOptions o;
  o.probes_per_second = 100;
  o.probe_max_in_flight = 8;
  ProbeBudget budget(o);
  Time now = Time{} + 1h;
  for (std::uint64_t i = 1; i <= 1'000; ++i) budget.schedule(SessionKey{i}, now, false);
  int taken = 0;
  while (budget.take(now)) ++taken;
  EXPECT_EQ(taken, 2);  // one and the burst of 10 ms
  EXPECT_EQ(budget.next_at(), now + 10ms);
  while (budget.in_flight() < 8) {
    now = budget.next_at();
    ASSERT_TRUE(budget.take(now));
  }
  EXPECT_EQ(budget.next_at(), kForever);
  EXPECT_FALSE(budget.take(now + 1s));
  budget.finished();
  EXPECT_TRUE(budget.take(now + 1s));
}

TEST(ProbeBudget, ReschedulingMovesAndRemovingForgets) {
  const HealthOptions o;
  ProbeBudget budget(o);
  const Time now = Time{} + 1h;
  budget.schedule(SessionKey{1}, now + 1s, false);
  budget.schedule(SessionKey{1}, now, true);
  EXPECT_EQ(budget.queued(), 1U);
  budget.remove(SessionKey{1});
  budget.remove(SessionKey{1});
  EXPECT_EQ(budget.queued(), 0U);
  EXPECT_FALSE(budget.take(now));
}

/// Every session is a black hole; each is probed as `SessionHealth` would (start to start, the
/// largest interval). Returns the longest time between two starts of one session, by class.
std::pair<Duration, Duration> longest_gaps(std::size_t demanded, std::size_t idle,
                                           const HealthOptions& o, Duration length) {
  struct End {
    Time at;
    std::uint64_t key;
    bool operator>(const End& other) const { return at > other.at; }
  };
  ProbeBudget budget(o);
  JitterSource jitter(7);
  std::priority_queue<End, std::vector<End>, std::greater<>> ends;
  const Time begin = Time{} + 1h;
  const std::size_t n = demanded + idle;
  std::vector<Time> last(n + 1, begin);
  for (std::uint64_t k = 1; k <= n; ++k) {
    const bool wanted = k <= demanded;
    const Duration interval = wanted ? o.probe_demand_interval : o.probe_max_interval;
    budget.schedule(SessionKey{k},
                    begin + Duration(static_cast<std::int64_t>(
                                jitter.next() % static_cast<std::uint64_t>(interval.count()))),
                    wanted);
  }
  Duration gap_demanded{};
  Duration gap_idle{};
  std::vector<std::uint32_t> out(n + 1);
  for (Time now = begin; now < begin + length;) {
    while (!ends.empty() && ends.top().at <= now) {
      const std::uint64_t k = ends.top().key;
      ends.pop();
      budget.finished();
      const bool was_full = out[k]-- == o.max_overlapping_probes;
      if (k > demanded) {
        budget.schedule(SessionKey{k}, std::max(now, last[k] + o.probe_max_interval), false);
      } else if (was_full) {
        budget.schedule(SessionKey{k}, std::max(now, last[k] + o.probe_demand_interval), true);
      }
    }
    while (const auto key = budget.take(now)) {
      const std::uint64_t k = key->value;
      Duration& longest = k <= demanded ? gap_demanded : gap_idle;
      longest = std::max(longest, now - last[k]);
      last[k] = now;
      ends.push({now + o.probe_deadline, k});
      if (++out[k] < o.max_overlapping_probes && k <= demanded) {
        budget.schedule(SessionKey{k}, now + o.probe_demand_interval, true);
      }
    }
    const Time next = std::min(budget.next_at(), ends.empty() ? kForever : ends.top().at);
    now = std::max(now + 1ns, next);
  }
  for (std::uint64_t k = 1; k <= n; ++k) {  // a session that starves shows here
    Duration& longest = k <= demanded ? gap_demanded : gap_idle;
    longest = std::max(longest, begin + length - last[k]);
  }
  return {gap_demanded, gap_idle};
}

TEST(ProbeBudget, TenThousandBlackHolesKeepTheBoundOfSafetyRule4) {
  const HealthOptions o;
  const auto [demanded, idle] = longest_gaps(1'000, 9'000, o, 300s);
  EXPECT_LE(demanded + o.probe_deadline, recovery_bound(10'000, o, true));
  EXPECT_LE(idle + o.probe_deadline, recovery_bound(10'000, o, false));
  EXPECT_LT(demanded, idle);
}

TEST(ProbeBudget, R5_FiftyBlackHolesAreProbedAsOftenAsOne) {
  const HealthOptions o;
  const Duration one = longest_gaps(1, 0, o, 20s).first;
  const Duration fifty = longest_gaps(50, 0, o, 20s).first;
  EXPECT_LE(fifty, one + 30ms);
  EXPECT_LE(recovery_bound(50, o, true), recovery_bound(1, o, true) + 50ms);
  // The figures of docs/life-of-a-failure.md.
  const auto ms = [](Duration d) { return std::chrono::ceil<std::chrono::milliseconds>(d); };
  EXPECT_EQ(ms(recovery_bound(1, o, true)), 1'901ms);
  EXPECT_EQ(ms(recovery_bound(1'000, o, true)), 5'525ms);
  EXPECT_EQ(ms(recovery_bound(10'000, o, true)), 33'150ms);
  EXPECT_EQ(ms(recovery_bound(1, o, false)), 6'003ms);
}

TEST(ProbeBudget, TheBoundHoldsForAnyMixAndBudget) {
  EXPECT_TRUE(rc::check([] {
    HealthOptions o;
    o.probes_per_second = *rc::gen::inRange<std::uint32_t>(20, 3'000);
    o.probe_max_in_flight = *rc::gen::inRange<std::uint32_t>(4, 600);
    o.probe_demand_weight = *rc::gen::inRange<std::uint32_t>(1, 9);
    const auto demanded = *rc::gen::inRange<std::size_t>(0, 60);
    const auto idle = *rc::gen::inRange<std::size_t>(0, 60);
    const std::size_t n = demanded + idle;
    const auto [gap_demanded, gap_idle] = longest_gaps(demanded, idle, o, 60s);
    if (demanded > 0)
      RC_ASSERT(gap_demanded + o.probe_deadline <= recovery_bound(n, o, true) ||
                recovery_bound(n, o, true) > 60s);
    if (idle > 0)
      RC_ASSERT(gap_idle + o.probe_deadline <= recovery_bound(n, o, false) ||
                recovery_bound(n, o, false) > 60s);
  }));
}

}  // namespace
}  // namespace kvmend::health
