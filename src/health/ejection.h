// Never all at once: if most peers seem dead, the fault is probably ours.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>

#include "base/time.h"
#include "health/options.h"
#include "kvmend/ids.h"

namespace kvmend::health {

/// Names a session within its engine. 0 is never one.
using SessionKey = StrongId<struct SessionKeyTag>;

/// What the engine thinks of itself; every `SessionHealth` reads the one of its engine.
struct SelfView {
  bool suspected = false;     ///< alert; own timeouts are stretched
  bool over_budget = false;   ///< more is blacklisted than the ejection budget allows
  std::uint32_t stretch = 1;  ///< factor for own timeouts (progress, handshake, probe)

  /// Whether a blacklisted session may end requests before their deadline at all.
  [[nodiscard]] bool may_fail_fast() const { return !suspected && !over_budget; }
};

/// Watches the blacklistings of one engine (memberlist's Lifeguard, Envoy's ejection budget).
/// Suspicion begins when more than `self_suspect_fraction` of the active sessions, and at least
/// `self_suspect_min_peers`, were blacklisted within `self_suspect_window`. It ends when no more
/// than that share is blacklisted, or `self_suspect_max` after the last loss. Sessions are probed
/// all the while. One owner thread.
class EjectionBudget {
 public:
  explicit EjectionBudget(const HealthOptions& options) : options_(&options) {}

  /// Sessions that are not retired, blacklisted ones included. Call when the number changes.
  void set_active(std::size_t sessions, Time now);
  /// A session was blacklisted (`kAnnounceBlacklisted`).
  void on_blacklisted(SessionKey key, Time now);
  /// It recovered, or was retired. Unknown keys are ignored.
  void on_lifted(SessionKey key, Time now);
  /// Lets the suspicion end; call at `next_at()`.
  void on_timer(Time now) { update(now); }

  [[nodiscard]] const SelfView& view() const { return view_; }
  [[nodiscard]] Time next_at() const;
  [[nodiscard]] std::size_t blacklisted() const { return blacklisted_.size(); }
  /// How often the suspicion began: the alert metric.
  [[nodiscard]] std::uint64_t suspicions() const { return suspicions_; }

 private:
  struct Loss {
    Time at;
    std::uint64_t number;  ///< tells a session's losses apart
    SessionKey key;
  };

  void update(Time now);
  void drop_old(Time now);
  [[nodiscard]] bool above(std::size_t count, double share) const;

  const HealthOptions* options_;
  std::size_t active_ = 0;
  std::unordered_map<SessionKey, Loss> blacklisted_;
  std::deque<Loss> recent_;      ///< by time; entries whose session was lifted are stale
  std::size_t recent_live_ = 0;  ///< entries of `recent_` that are not
  std::uint64_t losses_ = 0;
  Time last_loss_{};
  std::uint64_t suspicions_ = 0;
  SelfView view_;
};

}  // namespace kvmend::health
