// Access to registered memory that its owner may have unmapped: an error instead of a signal. The
// kernel moves the bytes between it and a small private buffer.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <optional>
#include <span>

#include "base/bytes.h"
#include "wire/checksum.h"

namespace kvmend::memory {

/// Copies bytes of our own into registered memory. False: some of it can't be written; what lies
/// before may have been. Any thread.
[[nodiscard]] bool guarded_store(std::span<const iovec> to, Bytes from);

/// Copies the parts, one after the other, into memory of our own that holds them all. False: some
/// of it can't be read. Any thread.
[[nodiscard]] bool guarded_load(std::byte* into, std::span<const iovec> parts);

/// Adds the parts in order to a checksum. False: some of it can't be read. Any thread.
[[nodiscard]] bool guarded_sum(std::span<const iovec> parts, wire::Checksum& sum);

/// XXH3-64 of the parts in order; nothing when they can't be read. Any thread.
[[nodiscard]] std::optional<std::uint64_t> guarded_checksum(std::span<const iovec> parts);

/// Copies between two places of this process by the kernel: bytes moved before the first page that
/// can't be accessed, or -errno. At most 1,024 entries each. Any thread.
[[nodiscard]] ssize_t guarded_copy(std::span<const iovec> to, std::span<const iovec> from);

/// Whether all of [base, base + length) is mapped at this moment. Any thread.
[[nodiscard]] bool is_mapped(const void* base, std::size_t length);

}  // namespace kvmend::memory
