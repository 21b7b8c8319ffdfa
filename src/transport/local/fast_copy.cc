#include "transport/local/fast_copy.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kvmend::transport::local {
namespace {

using Copy = void (*)(std::byte*, const std::byte*, std::size_t);

void copy_plain(std::byte* to, const std::byte* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
}

#if defined(__x86_64__)

constexpr std::size_t kMinBytes = 2048;  // below, the stores' detour over memory costs more

// Bytes until `at` is a multiple of 64.
std::size_t to_line(const std::byte* at) {
  return (64 - (reinterpret_cast<std::uintptr_t>(at) & 63U)) & 63U;
}

__attribute__((target("avx512f"))) void copy_avx512(std::byte* to, const std::byte* from,
                                                    std::size_t bytes) {
  if (bytes < kMinBytes) return copy_plain(to, from, bytes);
  const std::size_t head = to_line(to);
  std::memcpy(to, from, head);
  std::size_t at = head;
  for (; at + 256 <= bytes; at += 256) {
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
                                               std::size_t bytes) {
  if (bytes < kMinBytes) return copy_plain(to, from, bytes);
  const std::size_t head = to_line(to);
  std::memcpy(to, from, head);
  std::size_t at = head;
  for (; at + 128 <= bytes; at += 128) {
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

void fast_copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  g_copy(to, from, bytes);
}

void expect_copy(const std::byte* from, std::size_t bytes) {
  constexpr std::size_t kLine = 64;
  constexpr std::size_t kAhead = 8 * kLine;
  for (std::size_t at = 0; at < std::min(bytes, kAhead); at += kLine)
    __builtin_prefetch(from + at, 0, 0);
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
