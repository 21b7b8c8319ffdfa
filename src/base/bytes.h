// Little-endian loads and stores on byte buffers.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstring>
#include <span>

namespace kvmend {

using Bytes = std::span<const std::byte>;
using MutableBytes = std::span<std::byte>;

static_assert(std::endian::native == std::endian::little,
              "the wire format is little-endian; add byte swaps here for other machines");

template <std::unsigned_integral T>
[[nodiscard]] T load_le(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <std::unsigned_integral T>
void store_le(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

}  // namespace kvmend
