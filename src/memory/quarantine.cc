#include "memory/quarantine.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace kvmend::memory {

std::string_view release_name(Release how) {
  switch (how) {
    case Release::kDrained:
      return "drained";
    case Release::kGone:
      return "gone";
    case Release::kFenced:
      return "fenced";
    case Release::kUnproven:
      return "unproven";
  }
  return "unknown";
}

Quarantine::Quarantine(std::uint64_t pool_pages, double share)
    : pool_pages_(pool_pages),
      cap_(static_cast<std::uint64_t>(share * static_cast<double>(pool_pages))) {}

Status Quarantine::admits() const {
  if (!over_cap()) return {};
  return {Code::kResourceExhausted, Origin::kLocal,
          fmt::format("quarantine: {} of {} pages wait for the proof that nobody touches them any "
                      "more (at most {})",
                      pages_, pool_pages_, cap_)};
}

Quarantine::Id Quarantine::hold(Held held) {
  KVM_CHECK(!held.holders.empty(), "pages that nobody holds are free");
  pages_ += held.pages;
  held_.emplace(++last_id_, std::move(held));
  return last_id_;
}

Quarantine::All::iterator Quarantine::release(All::iterator at, Release how) {
  Held gone = std::move(at->second);
  const auto next = held_.erase(at);
  pages_ -= gone.pages;
  if (gone.on_released) gone.on_released(how);
  return next;
}

template <class Leaves>
void Quarantine::drop_holders(Release how, const Leaves& leaves) {
  for (auto at = held_.begin(); at != held_.end();) {
    const bool some = std::erase_if(at->second.holders, [&](const Holder& holder) {
                        return leaves(at->first, holder);
                      }) > 0;
    if (some && at->second.holders.empty()) {
      at = release(at, how);
    } else {
      ++at;
    }
  }
}

bool Quarantine::on_drained(Id id, const std::string& session_id, Incarnation incarnation) {
  const auto at = held_.find(id);
  if (at == held_.end()) return false;
  const auto said = [&](const Holder& holder) {
    return holder.session_id == session_id && holder.incarnation == incarnation;
  };
  if (std::erase_if(at->second.holders, said) == 0) return false;
  if (at->second.holders.empty()) release(at, Release::kDrained);
  return true;
}

void Quarantine::on_incarnation(const std::string& session_id, Incarnation now) {
  drop_holders(Release::kGone, [&](Id, const Holder& holder) {
    return holder.session_id == session_id && holder.incarnation != now;
  });
}

void Quarantine::on_registered_anew(const std::string& session_id) {
  drop_holders(Release::kGone,
               [&](Id, const Holder& holder) { return holder.session_id == session_id; });
}

std::vector<std::string> Quarantine::fences_due(Time now) const {
  std::vector<std::string> out;
  for (const auto& [id, held] : held_) {
    if (held.fence_at > now) continue;
    for (const Holder& holder : held.holders) out.push_back(holder.session_id);
  }
  std::ranges::sort(out);
  const auto twice = std::ranges::unique(out);
  out.erase(twice.begin(), twice.end());
  return out;
}

void Quarantine::on_fenced(const std::string& session_id, Id last) {
  drop_holders(Release::kFenced, [&](Id id, const Holder& holder) {
    return id <= last && holder.session_id == session_id;
  });
}

void Quarantine::release_all(Release how) {
  while (!held_.empty()) release(held_.begin(), how);
}

void Quarantine::expire(Time now) {
  for (auto at = held_.begin(); at != held_.end();)
    at = at->second.unproven_at <= now ? release(at, Release::kUnproven) : std::next(at);
}

Time Quarantine::next_due(Time now) const {
  Time next = kForever;
  for (const auto& [id, held] : held_) {
    if (held.fence_at > now) next = std::min(next, held.fence_at);
    next = std::min(next, held.unproven_at);
  }
  return next;
}

}  // namespace kvmend::memory
