// How many source pages wait for blacklisted sessions: at most the manager's shares of the pool for
// one of them and for all, so that a dead decode can't starve the living ones. Pure bookkeeping;
// loop thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "kvmend/kv.h"
#include "kvmend/status.h"

namespace kvmend::kv {

class ParkLimits {
 public:
  /// `pool_pages`: of the kv component.
  ParkLimits(std::uint64_t pool_pages, const KvOptions& options)
      : pool_pages_(pool_pages),
        per_session_(options.parked_share_per_session),
        in_all_(options.parked_share) {}

  /// A write holds `pages` of the source until it is over.
  void hold(const std::string& session, std::uint64_t pages) { held_[session] += pages; }
  void release(const std::string& session, std::uint64_t pages);

  /// Whether `pages` more may wait for a blacklisted `session`; `blacklisted` says it of the
  /// others. Errors: kSessionFailed, naming both figures.
  [[nodiscard]] Status may_park(const std::string& session, std::uint64_t pages,
                                const std::function<bool(const std::string&)>& blacklisted) const;
  [[nodiscard]] std::uint64_t held(const std::string& session) const;

 private:
  const std::uint64_t pool_pages_;
  const double per_session_;
  const double in_all_;
  std::map<std::string, std::uint64_t> held_;  // sessions with a write only
};

}  // namespace kvmend::kv
