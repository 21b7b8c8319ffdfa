// Which KV manager a side runs, and what to say when the two don't fit together.
#pragma once

#include <string>
#include <string_view>

#include "kvmend/status.h"

namespace kvmend::bootstrap {

/// A manager as its user knows it: "kvmend 0.1.0", or "SGLang's stock manager" for an empty name.
[[nodiscard]] std::string describe_backend(std::string_view backend, std::string_view version);

/// Refuses two sides with different managers: they speak different control protocols, and every
/// request would hang. `kIncompatible` (peer), naming both and the fix; OK when they are equal.
[[nodiscard]] Status check_backends(std::string_view prefill, std::string_view prefill_version,
                                    std::string_view decode, std::string_view decode_version);

}  // namespace kvmend::bootstrap
