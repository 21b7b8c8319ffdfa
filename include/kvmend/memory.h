// Registered memory.
#pragma once

#include <cstdint>

namespace kvmend {

/// A range of memory of this process.
struct MemoryRange {
  void* base = nullptr;
  std::uint64_t length = 0;  ///< bytes
};

enum class MemoryKind : std::uint8_t { kHost = 0, kCuda = 1 };

/// What peers may do with a region through the standing grant. Regions of the KV manager are
/// registered with `kNone`: only room grants open them.
enum class Access : std::uint8_t { kNone = 0, kRemoteRead = 1, kRemoteWrite = 2, kReadWrite = 3 };

[[nodiscard]] constexpr bool allows(Access have, Access want) {
  return (static_cast<unsigned>(have) & static_cast<unsigned>(want)) == static_cast<unsigned>(want);
}

}  // namespace kvmend
