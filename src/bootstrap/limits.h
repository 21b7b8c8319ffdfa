// The named maxima of the bootstrap registry.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace kvmend::bootstrap::limits {

using namespace std::chrono_literals;

inline constexpr std::uint16_t kDefaultPort = 8998;  // SGLang's --disaggregation-bootstrap-port
inline constexpr std::size_t kMaxRequestBytes = 256U << 10;
inline constexpr std::size_t kMaxJsonDepth = 16;
inline constexpr std::size_t kMaxTextBytes = 256;        // every string in a registration
inline constexpr std::size_t kMaxSpecBytes = 16U << 10;  // dsv41_spec_layout, as text
inline constexpr std::size_t kMaxRanks = 65'536;         // of one prefill instance
inline constexpr std::size_t kMaxRooms = 262'144;        // rooms with a known dp rank; oldest goes
inline constexpr std::size_t kMaxRoomsPerQuery = 16'384;
inline constexpr std::size_t kMaxRetired = 65'536;  // remembered incarnations of replaced ranks
inline constexpr auto kRoomLifetime = 120s;         // SGLang's BOOTSTRAP_ENTRY_CLEANUP_INTERVAL
inline constexpr auto kMaxLease = 3'600s;
inline constexpr auto kUpkeepInterval = 1s;

}  // namespace kvmend::bootstrap::limits
