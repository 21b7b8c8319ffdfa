// Caps on a serialized Protocol Buffers message, enforced before it is parsed: parsing allocates
// up to a hundred times the bytes of a body (repeated empty submessages), so lengths and counts
// have to be checked on the bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/bytes.h"
#include "kvmend/status.h"

namespace kvmend::wire {

/// What one field of a message may hold. Fields that aren't listed may hold anything (scalars, and
/// fields of later versions: they are kept as bytes, so they don't grow).
struct FieldCap {
  std::uint32_t field = 0;
  std::uint32_t max_count = 1;         ///< occurrences; submessages that aren't repeated: 1
  std::size_t max_bytes = 0;           ///< of each occurrence
  std::span<const FieldCap> fields{};  ///< caps inside a submessage
};

/// Errors: kProtocolError, origin peer: malformed, or the field that exceeds its cap. `name` stands
/// in the detail.
[[nodiscard]] Status check_caps(Bytes message, std::span<const FieldCap> caps, const char* name);

}  // namespace kvmend::wire
