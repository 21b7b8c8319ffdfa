#include "transport/local/fast_copy.h"

#include <atomic>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kvmend::transport::local {
namespace {

using Copy = void (*)(std::byte*, const std::byte*, std::size_t, const std::byte*);

void copy_plain(std::byte* to, const std::byte* from, std::size_t bytes, const std::byte*) {
  std::memcpy(to, from, bytes);
}

#if defined(__x86_64__)

constexpr std::size_t kMinBytes = 2048;  // below, the stores' detour over memory costs more

// Bytes until `at` is a multiple of 64.
std::size_t to_line(const std::byte* at) {
  return (64 - (reinterpret_cast<std::uintptr_t>(at) & 63U)) & 63U;
}

// One line for each half KiB that has been copied: fetched all at once, they would hold up the copy
// as long as they spare it.
inline void fetch_ahead(const std::byte* next, std::size_t copied) {
  constexpr std::size_t kEvery = 512;
  constexpr std::size_t kLines = 8;
  if (next != nullptr && copied % kEvery == 0 && copied < kLines * kEvery)
    __builtin_prefetch(next + copied / kEvery * 64, 0, 0);
}

__attribute__((target("avx512f"))) void copy_avx512(std::byte* to, const std::byte* from,
                                                    std::size_t bytes, const std::byte* next) {
  if (bytes < kMinBytes) return copy_plain(to, from, bytes, next);
  const std::size_t head = to_line(to);
  std::memcpy(to, from, head);
  std::size_t at = head;
  for (; at + 256 <= bytes; at += 256) {
    fetch_ahead(next, at - head);
    const __m512i a = _mm512_loadu_si512(from + at);
    const __m512i b = _mm512_loadu_si512(from + at + 64);
    const __m512i c = _mm512_loadu_si512(from + at + 128);
    const __m512i d = _mm512_loadu_si512(from + at + 192);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + at), a);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + at + 64), b);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + at + 128), c);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + at + 192), d);
  }
  std::memcpy(to + at, from + at, bytes - at);
}

__attribute__((target("avx2"))) void copy_avx2(std::byte* to, const std::byte* from,
                                               std::size_t bytes, const std::byte* next) {
  if (bytes < kMinBytes) return copy_plain(to, from, bytes, next);
  const std::size_t head = to_line(to);
  std::memcpy(to, from, head);
  std::size_t at = head;
  for (; at + 128 <= bytes; at += 128) {
    fetch_ahead(next, at - head);
    const auto* source = reinterpret_cast<const __m256i*>(from + at);
    auto* target = reinterpret_cast<__m256i*>(to + at);
    const __m256i a = _mm256_loadu_si256(source);
    const __m256i b = _mm256_loadu_si256(source + 1);
    const __m256i c = _mm256_loadu_si256(source + 2);
    const __m256i d = _mm256_loadu_si256(source + 3);
    _mm256_stream_si256(target, a);
    _mm256_stream_si256(target + 1, b);
    _mm256_stream_si256(target + 2, c);
    _mm256_stream_si256(target + 3, d);
  }
  std::memcpy(to + at, from + at, bytes - at);
}

Copy pick() {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f")) return copy_avx512;
  if (__builtin_cpu_supports("avx2")) return copy_avx2;
  return copy_plain;
}

#else

Copy pick() {
  return copy_plain;
}

#endif

const Copy g_copy = pick();

}  // namespace

void fast_copy(std::byte* to, const std::byte* from, std::size_t bytes, const std::byte* next) {
  g_copy(to, from, bytes, next);
}

void finish_copies() {
#if defined(__x86_64__)
  _mm_sfence();
#else
  std::atomic_thread_fence(std::memory_order_release);
#endif
}

const char* fast_copy_name() {
#if defined(__x86_64__)
  if (g_copy == copy_avx512) return "avx512";
  if (g_copy == copy_avx2) return "avx2";
#endif
  return "memcpy";
}

}  // namespace kvmend::transport::local
