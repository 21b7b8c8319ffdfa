#include "kv/park_limits.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/config.h"

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
  const auto share = [&](std::uint64_t percent) { return pool_pages_ * percent / 100; };
  const auto refuse = [&](std::uint64_t waiting, const std::string& whom, std::uint64_t percent) {
    return Status(Code::kSessionFailed, Origin::kLocal,
                  fmt::format("{} of {} pages wait for {} already, and {} more would be over {} %",
                              waiting, pool_pages_, whom, pages, percent));
  };
  const std::uint64_t here = held(session);
  if (here + pages > share(config::kParkedPercentPerSession))
    return refuse(here, session, config::kParkedPercentPerSession);
  std::uint64_t all = 0;
  for (const auto& [one, waiting] : held_)
    if (one == session || blacklisted(one)) all += waiting;
  if (all + pages > share(config::kParkedPercentInAll))
    return refuse(all, "blacklisted sessions", config::kParkedPercentInAll);
  return {};
}

}  // namespace kvmend::kv
