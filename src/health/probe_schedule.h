// The probes of a whole engine: which of thousands of failed sessions may probe now.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <unordered_map>

#include "base/time.h"
#include "health/ejection.h"
#include "health/options.h"

namespace kvmend::health {

/// Hands out permits to probe, at most `probes_per_second` (with a burst of 10 ms) and
/// `probe_max_in_flight` at a time. Among sessions that are due the one due first goes first; of
/// those with demand and those without, `probe_demand_weight` : 1 while both wait, so that demand
/// goes first and nobody starves. A session that waits keeps its place: with more sessions than
/// the budget can serve, the interval of each stretches to sessions ÷ budget.
/// O(log n) per call; memory O(queued), at most `config::kMaxSessions`. One owner thread.
class ProbeBudget {
 public:
  explicit ProbeBudget(const HealthOptions& options);

  /// Queues the session's next probe, or moves it. `SessionHealth` says when and which.
  void schedule(SessionKey key, Time due, bool demanded);
  /// Forgets the session's queued probe, if any. Permits it holds stay until `finished`.
  void remove(SessionKey key);
  /// The next session that may probe now; it leaves the queue and holds one permit.
  [[nodiscard]] std::optional<SessionKey> take(Time now);
  /// A probe ended (passed, failed or cancelled): its permit is free.
  void finished();

  /// When `take` may next succeed; `kForever` while nothing is queued or every permit is out (then
  /// try again after `finished`).
  [[nodiscard]] Time next_at() const;

  [[nodiscard]] std::size_t queued() const { return entries_.size(); }
  [[nodiscard]] std::size_t in_flight() const { return in_flight_; }

 private:
  struct Entry {
    Time due;
    std::uint64_t order;  ///< of two due at the same time, the one queued first
    SessionKey key;
    friend auto operator<=>(const Entry&, const Entry&) = default;
  };
  struct Place {
    Entry entry;
    bool demanded;
  };
  using Queue = std::set<Entry>;

  [[nodiscard]] Queue& queue(bool demanded) { return demanded ? demanded_ : idle_; }
  SessionKey pop(Queue& from);

  const HealthOptions* options_;
  Queue demanded_;
  Queue idle_;
  std::unordered_map<SessionKey, Place> entries_;
  std::uint64_t next_order_ = 0;
  std::size_t in_flight_ = 0;
  std::uint32_t demanded_in_row_ = 0;  ///< served while a session without demand was due
  Duration spacing_;                   ///< 1 s / probes_per_second
  Time next_free_ = Time::min();       ///< theoretical arrival time of the token bucket (GCRA)
};

/// For how long after its start a probe that waits at a stopped peer's host (its hello taken, not
/// answered) keeps further ones away: that host would take them all, and they'd stand in the way of
/// the one that counts when the process goes on.
[[nodiscard]] Duration probe_hold_off(const HealthOptions& options);

/// Safety rule 4: the longest time between the moment a peer becomes reachable (it answers both
/// stages of a probe within `probe_deadline`, and goes on doing so) and its session leaving
/// `failed`, with `failed_sessions` failed in all. See docs/life-of-a-failure.md for the terms.
[[nodiscard]] Duration recovery_bound(std::size_t failed_sessions, const HealthOptions& options,
                                      bool demanded);

}  // namespace kvmend::health
