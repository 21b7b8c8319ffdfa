// Checks of an engine's options.
#pragma once

#include "kvmend/options.h"
#include "kvmend/status.h"

namespace kvmend::engine {

/// OK, or kInvalidArgument / kPermissionDenied naming the option, its value and what it may be.
[[nodiscard]] Status validate(const EngineOptions& options);

}  // namespace kvmend::engine
