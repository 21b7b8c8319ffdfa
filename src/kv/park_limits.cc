#include "kv/park_limits.h"

#include <fmt/format.h>

#include <algorithm>

namespace kvmend::kv {

void ParkLimits::release(const std::string& session, std::uint64_t pages) {
  const auto at = held_.find(session);
  if (at == held_.end()) return;
  at->second -= std::min(at->second, pages);
  if (at->second == 0) held_.erase(at);
}

std::uint64_t ParkLimits::held(const std::string& session) const {
  const auto at = held_.find(session);
  return at == held_.end() ? 0 : at->second;
}

Status ParkLimits::may_park(const std::string& session, std::uint64_t pages,
                            const std::function<bool(const std::string&)>& blacklisted) const {
  const auto exceeds = [&](std::uint64_t held_pages, double share) {
    return static_cast<double>(held_pages) > static_cast<double>(pool_pages_) * share;
  };
  const auto refuse = [&](std::uint64_t waiting, const std::string& whom, double share) {
    return Status(
        Code::kSessionFailed, Origin::kLocal,
        fmt::format("{} of {} pages wait for {} already, and {} more would be over {:.0f} %",
                    waiting, pool_pages_, whom, pages, share * 100));
  };
  const std::uint64_t here = held(session);
  if (exceeds(here + pages, per_session_)) return refuse(here, session, per_session_);
  std::uint64_t all = 0;
  for (const auto& [one, waiting] : held_)
    if (one == session || blacklisted(one)) all += waiting;
  if (exceeds(all + pages, in_all_)) return refuse(all, "blacklisted sessions", in_all_);
  return {};
}

}  // namespace kvmend::kv
