#include "raw_local.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kvmend::bench {
namespace {

constexpr std::size_t kThreads = 2;
constexpr std::size_t kMaxIov = 1024;
constexpr std::size_t kCallBytes = 4U << 20U;

#if defined(__x86_64__)
__attribute__((target("avx512f"))) void copy_page_512(std::byte* to, const std::byte* from,
                                                      std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += 256) {
    const __m512i a = _mm512_loadu_si512(from + i);
    const __m512i b = _mm512_loadu_si512(from + i + 64);
    const __m512i c = _mm512_loadu_si512(from + i + 128);
    const __m512i d = _mm512_loadu_si512(from + i + 192);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i), a);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i + 64), b);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i + 128), c);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i + 192), d);
  }
  _mm_sfence();
}

__attribute__((target("avx2"))) void copy_page_256(std::byte* to, const std::byte* from,
                                                   std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += 128) {
    const auto* source = reinterpret_cast<const __m256i*>(from + i);
    auto* target = reinterpret_cast<__m256i*>(to + i);
    const __m256i a = _mm256_loadu_si256(source);
    const __m256i b = _mm256_loadu_si256(source + 1);
    const __m256i c = _mm256_loadu_si256(source + 2);
    const __m256i d = _mm256_loadu_si256(source + 3);
    _mm256_stream_si256(target, a);
    _mm256_stream_si256(target + 1, b);
    _mm256_stream_si256(target + 2, c);
    _mm256_stream_si256(target + 3, d);
  }
  _mm_sfence();
}
#endif

void copy_page(std::byte* to, const std::byte* from, std::size_t bytes) {
#if defined(__x86_64__)
  static const bool wide = __builtin_cpu_supports("avx512f") != 0;
  static const bool half = __builtin_cpu_supports("avx2") != 0;
  if (wide && bytes % 256 == 0) return copy_page_512(to, from, bytes);
  if (half && bytes % 128 == 0) return copy_page_256(to, from, bytes);
#endif
  std::memcpy(to, from, bytes);
}

bool read_part(const RawSource& from, std::byte* to, std::size_t page_bytes,
               std::span<const std::uint32_t> src, std::span<const std::uint32_t> dst) {
  std::vector<iovec> local;
  std::vector<iovec> remote;
  const std::size_t batch = std::clamp<std::size_t>(kCallBytes / page_bytes, 1, kMaxIov);
  for (std::size_t i = 0; i < src.size();) {
    local.clear();
    remote.clear();
    for (; i < src.size() && local.size() < batch; ++i) {
      local.push_back({to + dst[i] * page_bytes, page_bytes});
      remote.push_back({reinterpret_cast<void*>(from.address + src[i] * page_bytes),  // NOLINT
                        page_bytes});
    }
    const ssize_t got =
        process_vm_readv(from.pid, local.data(), local.size(), remote.data(), remote.size(), 0);
    if (got != static_cast<ssize_t>(local.size() * page_bytes)) return false;
  }
  return true;
}

}  // namespace

const std::byte* map_peer_memfd(pid_t pid, int fd, std::size_t bytes) {
  const int own = open(fmt::format("/proc/{}/fd/{}", pid, fd).c_str(), O_RDONLY | O_CLOEXEC);
  if (own < 0) return nullptr;
  void* at = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, own, 0);
  close(own);
  if (at == MAP_FAILED) return nullptr;
  madvise(at, bytes, MADV_HUGEPAGE);
  return static_cast<const std::byte*>(at);
}

bool raw_copy(const RawSource& from, std::byte* to, std::size_t page_bytes,
              std::span<const std::uint32_t> src_order, std::span<const std::uint32_t> dst_order) {
  std::atomic<bool> good{true};
  {
    std::vector<std::jthread> threads;
    for (std::size_t t = 0; t < kThreads; ++t) {
      const std::size_t begin = src_order.size() * t / kThreads;
      const std::size_t count = src_order.size() * (t + 1) / kThreads - begin;
      threads.emplace_back(
          [&, src = src_order.subspan(begin, count), dst = dst_order.subspan(begin, count)] {
            if (from.mapped == nullptr) {
              if (!read_part(from, to, page_bytes, src, dst)) good.store(false);
              return;
            }
            for (std::size_t i = 0; i < src.size(); ++i)
              copy_page(to + dst[i] * page_bytes, from.mapped + src[i] * page_bytes, page_bytes);
          });
    }
  }
  return good.load();
}

}  // namespace kvmend::bench
