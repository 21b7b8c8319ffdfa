// Copies that don't pass through the caches.
#pragma once

#include <cstddef>

namespace kvmend::transport::local {

/// Copies with non-temporal stores where the processor has wide ones (AVX-512, AVX2; chosen once at
/// run time) and the run is long enough, else with memcpy. Any alignment; no overlap. Call
/// `finish_copies` before another thread may be told. Any thread.
void fast_copy(std::byte* to, const std::byte* from, std::size_t bytes);
/// Fetches the beginning of what is to be copied next: the processor's own look-ahead ends with a
/// page, and scattered ones would each begin with a wait for memory. Never fails.
void expect_copy(const std::byte* from, std::size_t bytes);

/// Orders the stores of earlier `fast_copy` calls of this thread before what follows.
void finish_copies();

/// "avx512", "avx2" or "memcpy".
[[nodiscard]] const char* fast_copy_name();

}  // namespace kvmend::transport::local
