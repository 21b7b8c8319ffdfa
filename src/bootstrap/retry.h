// When a client of the registry asks again.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/time.h"

namespace kvmend::bootstrap {

struct RetryOptions {
  Duration first = std::chrono::milliseconds(100);
  Duration longest = std::chrono::seconds(2);
  /// Of one attempt, never beyond the deadline. More than the 15 s of case B3 would hide an answer
  /// that was lost; less would only ask a slow registry more often.
  Duration attempt_timeout = std::chrono::seconds(5);
};

/// The pause before attempt number `attempt` (1: the first repetition): doubling, between half and
/// the whole of the nominal delay, so that ranks which failed together don't ask together.
[[nodiscard]] constexpr Duration retry_delay(const RetryOptions& options, std::uint32_t attempt,
                                             std::uint64_t random) {
  Duration nominal = options.first;
  for (std::uint32_t i = 1; i < attempt && nominal < options.longest; ++i) nominal *= 2;
  nominal = std::min(nominal, options.longest);
  const auto half = nominal.count() / 2;
  return Duration(half + static_cast<std::int64_t>(random % static_cast<std::uint64_t>(half + 1)));
}

}  // namespace kvmend::bootstrap
