// What a page should hold: a pattern that names its room, so that foreign bytes show.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvmend::sim {

[[nodiscard]] constexpr std::uint64_t mix(std::uint64_t a, std::uint64_t b = 0) {
  std::uint64_t x = a * 0x9e3779b97f4a7c15ULL + b * 0xc2b2ae3d27d4eb4fULL + 0x2545f4914f6cdd1dULL;
  x ^= x >> 30U;
  x *= 0xbf58476d1ce4e5b9ULL;
  x ^= x >> 27U;
  x *= 0x94d049bb133111ebULL;
  return x ^ (x >> 31U);
}

/// Byte `index` of the pattern. Never 0: zeros stand for what a sender took back.
[[nodiscard]] constexpr std::byte pattern(std::uint64_t seed, std::size_t index) {
  const std::uint64_t word = mix(seed, index / 8);
  return static_cast<std::byte>(((word >> (8 * (index % 8))) & 0xffU) | 1U);
}

inline void fill(std::span<std::byte> bytes, std::uint64_t seed) {
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = pattern(seed, i);
}

}  // namespace kvmend::sim
