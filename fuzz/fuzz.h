// What the targets share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/check.h"

namespace kvmend::fuzz {

inline Bytes bytes(const std::uint8_t* data, std::size_t size) {
  return std::as_bytes(std::span(data, size));
}

inline Bytes bytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

}  // namespace kvmend::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
