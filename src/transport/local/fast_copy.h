// Copies that don't pass through the caches.
#pragma once

#include <cstddef>

namespace kvmend::transport::local {

/// Copies with non-temporal stores where the processor has wide ones (AVX-512, AVX2; chosen once at
/// run time) and the run is long enough, else with memcpy. Any alignment; no overlap. Call
/// `finish_copies` before another thread may be told. Any thread.
///
/// `next`: where the following copy begins to read; its first half KiB is fetched on the way. The
/// processor's own look-ahead ends with a page, and each of scattered ones would begin with a wait
/// for memory. Null: none; an address that isn't mapped does no harm.
void fast_copy(std::byte* to, const std::byte* from, std::size_t bytes,
               const std::byte* next = nullptr);

/// Orders the stores of earlier `fast_copy` calls of this thread before what follows.
void finish_copies();

/// "avx512", "avx2" or "memcpy".
[[nodiscard]] const char* fast_copy_name();

}  // namespace kvmend::transport::local
