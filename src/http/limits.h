// The named maxima of kvmend's HTTP servers and clients.
#pragma once

#include <chrono>
#include <cstddef>

namespace kvmend::http::limits {

using namespace std::chrono_literals;

inline constexpr std::size_t kMaxHeaderBytes = 16'384;  // request line and all fields together
inline constexpr std::size_t kMaxBodyBytes = 1U << 20;
inline constexpr std::size_t kMaxResponseBytes = 4U << 20;  // what a client takes
inline constexpr std::size_t kReadBufferBytes = 65'536;     // per connection
inline constexpr std::size_t kMaxConnections = 256;
inline constexpr std::size_t kMaxQueryParameters = 64;
inline constexpr std::size_t kMaxTargetBytes = 8'192;
inline constexpr std::size_t kMaxUrlBytes = 8'192;
inline constexpr std::size_t kDrainBytes = 4U << 20;  // read and dropped after an error answer

inline constexpr auto kIdleTimeout = 10s;   // between requests, and before the first one
inline constexpr auto kReadTimeout = 10s;   // from a request's first byte to its last
inline constexpr auto kWriteTimeout = 10s;  // one answer
inline constexpr auto kDrainTimeout = 1s;
inline constexpr auto kStopGrace = 1s;        // answers under way when the server stops
inline constexpr auto kAcceptBackoff = 50ms;  // out of descriptors

}  // namespace kvmend::http::limits
