// Registered memory.
#pragma once

#include <cstdint>

namespace kvmend {

enum class MemoryKind : std::uint8_t { kHost = 0, kCuda = 1 };

/// What peers may do with a region through the standing grant. Regions of the KV manager are
/// registered with `kNone`: only room grants open them.
enum class Access : std::uint8_t { kNone = 0, kRemoteRead = 1, kRemoteWrite = 2, kReadWrite = 3 };

[[nodiscard]] constexpr bool allows(Access have, Access want) {
  return (static_cast<unsigned>(have) & static_cast<unsigned>(want)) == static_cast<unsigned>(want);
}

}  // namespace kvmend
