#include "kv/foreign_blacklist.h"

#include <algorithm>
#include <utility>

namespace kvmend::kv {

void ForeignBlacklist::on_demand(const std::string& session, Time now) {
  const auto at = entries_.find(session);
  if (at != entries_.end()) at->second.wanted = now;
}

void ForeignBlacklist::on_write_failed(const std::string& session, Status why, Time now) {
  const auto [at, is_new] = entries_.try_emplace(session);
  Entry& entry = at->second;
  entry.failure = ++failures_;
  entry.wanted = now;
  if (!is_new && !entry.trial) return;  // of the same incident: the first cause stays
  entry.why = std::move(why);
  if (is_new) {
    entry.interval = options_.probe_interval;
  } else {
    ++totals_.relapses;
    entry.trial = false;
    entry.interval = std::min(entry.interval * 2, Duration(options_.probe_max_interval));
  }
  entry.due = options_.probes_enabled ? saturating_add(now, entry.interval) : kForever;
}

void ForeignBlacklist::on_write_ok(const std::string& session) {
  if (on_trial(session)) entries_.erase(session);
}

bool ForeignBlacklist::lift(const std::string& session) {
  const bool was = blacklisted(session);
  entries_.erase(session);
  return was;
}

std::vector<ForeignBlacklist::Probe> ForeignBlacklist::take_due(Time now) {
  std::erase_if(entries_, [&](const auto& one) {
    return !one.second.probing && now - one.second.wanted >= options_.idle_timeout;
  });
  std::vector<Probe> due;
  for (auto& [session, entry] : entries_) {
    if (entry.trial || entry.probing || entry.due > now) continue;
    entry.probing = true;
    due.push_back({session, entry.failure});
  }
  return due;
}

Time ForeignBlacklist::next_due() const {
  Time next = kForever;
  for (const auto& [session, entry] : entries_) {
    if (entry.probing) continue;
    next = std::min(next, saturating_add(entry.wanted, options_.idle_timeout));
    if (!entry.trial) next = std::min(next, entry.due);
  }
  return next;
}

bool ForeignBlacklist::on_probed(const Probe& probe, int rc, Time now) {
  if (rc == ForeignCalls::kUnavailable) ++totals_.unavailable;
  const auto at = entries_.find(probe.session);
  if (at == entries_.end() || at->second.trial) return false;  // lifted meanwhile
  Entry& entry = at->second;
  entry.probing = false;
  if (rc == 0 && entry.failure == probe.failure) {
    ++totals_.recoveries;
    entry.trial = true;
    return true;
  }
  if (rc == 0) {
    ++totals_.outdated;  // what failed since is newer than what the probe saw
  } else {
    entry.interval = std::min(entry.interval * 2, Duration(options_.probe_max_interval));
  }
  entry.due = saturating_add(now, entry.interval);
  return false;
}

bool ForeignBlacklist::blacklisted(const std::string& session) const {
  const auto at = entries_.find(session);
  return at != entries_.end() && !at->second.trial;
}

bool ForeignBlacklist::on_trial(const std::string& session) const {
  const auto at = entries_.find(session);
  return at != entries_.end() && at->second.trial;
}

Status ForeignBlacklist::reason(const std::string& session) const {
  const auto at = entries_.find(session);
  return at == entries_.end() || at->second.trial ? Status::ok() : at->second.why;
}

std::size_t ForeignBlacklist::size() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(entries_, [](const auto& one) { return !one.second.trial; }));
}

}  // namespace kvmend::kv
