#include "health/probe_schedule.h"

#include <algorithm>

#include "base/check.h"
#include "base/config.h"
#include "base/sabotage.h"

namespace kvmend::health {
namespace {

constexpr Duration kBurst = std::chrono::milliseconds(10);

Duration spacing_of(const HealthOptions& options) {
  return Duration(std::chrono::seconds(1)) / options.probes_per_second;
}

}  // namespace

ProbeBudget::ProbeBudget(const HealthOptions& options)
    : options_(&options), spacing_(spacing_of(options)) {}

void ProbeBudget::schedule(SessionKey key, Time due, bool demanded) {
  remove(key);
  KVM_CHECK(entries_.size() < config::kMaxSessions, "more probes queued than sessions can exist");
  const Entry entry{due, next_order_++, key};
  queue(demanded).insert(entry);
  entries_.emplace(key, Place{entry, demanded});
}

void ProbeBudget::remove(SessionKey key) {
  const auto found = entries_.find(key);
  if (found == entries_.end()) return;
  queue(found->second.demanded).erase(found->second.entry);
  entries_.erase(found);
}

SessionKey ProbeBudget::pop(Queue& from) {
  const SessionKey key = from.begin()->key;
  from.erase(from.begin());
  entries_.erase(key);
  return key;
}

std::optional<SessionKey> ProbeBudget::take(Time now) {
  if (in_flight_ >= options_->probe_max_in_flight) return std::nullopt;
  if (KVM_SABOTAGE(sequential_probes) && in_flight_ > 0) return std::nullopt;
  if (next_free_ > now + kBurst) return std::nullopt;
  const bool demand = !demanded_.empty() && demanded_.begin()->due <= now;
  const bool idle = !idle_.empty() && idle_.begin()->due <= now;
  if (!demand && !idle) return std::nullopt;

  next_free_ = std::max(next_free_, now) + spacing_;
  ++in_flight_;
  if (demand && (!idle || demanded_in_row_ < options_->probe_demand_weight)) {
    demanded_in_row_ = idle ? demanded_in_row_ + 1 : 0;
    return pop(demanded_);
  }
  demanded_in_row_ = 0;
  return pop(idle_);
}

void ProbeBudget::finished() {
  KVM_CHECK(in_flight_ > 0, "a probe ended that never began");
  --in_flight_;
}

Time ProbeBudget::next_at() const {
  if (in_flight_ >= options_->probe_max_in_flight) return kForever;
  if (KVM_SABOTAGE(sequential_probes) && in_flight_ > 0) return kForever;
  Time due = kForever;
  if (!demanded_.empty()) due = demanded_.begin()->due;
  if (!idle_.empty()) due = std::min(due, idle_.begin()->due);
  if (due == kForever || next_free_ == Time::min()) return due;
  return std::max(due, next_free_ - kBurst);
}

Duration probe_hold_off(const HealthOptions& o) {
  return std::max<Duration>(o.probe_deadline - 2 * o.probe_demand_interval, Duration::zero());
}

Duration recovery_bound(std::size_t failed_sessions, const HealthOptions& o, bool demanded) {
  const auto n = static_cast<std::int64_t>(std::max<std::size_t>(failed_sessions, 1));
  const auto weight = static_cast<std::int64_t>(o.probe_demand_weight);
  const auto permits = static_cast<std::int64_t>(o.probe_max_in_flight);

  // Probes that may go ahead of ours: one of every other session of our class, and those of the
  // other class between them.
  const std::int64_t ahead = demanded ? n + (n + weight - 1) / weight : n * (weight + 1);
  const Duration rate_wait = spacing_of(o) * ahead;
  // All permits can be out only if there are more probes than permits.
  const bool scarce = n * o.max_overlapping_probes > permits;
  const Duration permit_wait =
      scarce ? o.probe_deadline * ((ahead + permits - 1) / permits) : Duration::zero();
  // The probe before ours began just before the peer became reachable, and perhaps its hello had
  // been taken by the host of a stopped process, so that ours was put off.
  const Duration put_off = probe_hold_off(o) + o.probe_demand_interval;
  const Duration interval = demanded ? std::max({put_off, o.probe_demand_interval,
                                                 o.probe_deadline / o.max_overlapping_probes})
                                     : std::max({put_off, o.probe_max_interval, o.probe_deadline});
  return interval + rate_wait + permit_wait + o.probe_deadline;
}

}  // namespace kvmend::health
