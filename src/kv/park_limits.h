// How many source pages wait for blacklisted sessions: at most a quarter of the pool for one of
// them and half of it for all (the design's shares), so that a dead decode can't starve the living
// ones. Pure bookkeeping; loop thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "kvmend/status.h"

namespace kvmend::kv {

class ParkLimits {
 public:
  /// `pool_pages`: of the kv component.
  explicit ParkLimits(std::uint64_t pool_pages) : pool_pages_(pool_pages) {}

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
  std::map<std::string, std::uint64_t> held_;  // sessions with a write only
};

}  // namespace kvmend::kv
