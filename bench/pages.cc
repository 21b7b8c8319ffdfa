#include "pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>

namespace kvmend::bench {
namespace {

constexpr std::size_t kHugeBytes = 2U << 20;

std::uint64_t word_at(std::size_t index, std::uint64_t seed) {
  return (index + 1) * 0x9E3779B97F4A7C15ULL + seed;
}

}  // namespace

Buffer::Buffer(std::size_t bytes, PageMemory memory) : mapped_(bytes + kHugeBytes), size_(bytes) {
  mapping_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping_ == MAP_FAILED) std::abort();
  const auto address = reinterpret_cast<std::uintptr_t>(mapping_);
  data_ = reinterpret_cast<std::byte*>((address + kHugeBytes - 1) & ~(kHugeBytes - 1));
  madvise(data_, size_, memory == PageMemory::kHuge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  std::memset(data_, 0, size_);
}

Buffer::~Buffer() {
  munmap(mapping_, mapped_);
}

std::vector<std::uint32_t> random_order(std::size_t count, std::uint64_t seed) {
  std::vector<std::uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0U);
  std::mt19937_64 random(seed);
  std::ranges::shuffle(order, random);
  return order;
}

void fill(std::span<std::byte> bytes, std::uint64_t seed) {
  for (std::size_t i = 0; i + 8 <= bytes.size(); i += 8) {
    const std::uint64_t word = word_at(i / 8, seed);
    std::memcpy(bytes.data() + i, &word, sizeof word);
  }
}

bool holds(std::span<const std::byte> dst, std::size_t page_bytes,
           std::span<const std::uint32_t> src_order, std::span<const std::uint32_t> dst_order,
           std::uint64_t seed) {
  for (std::size_t i = 0; i < src_order.size(); ++i) {
    const std::byte* at = dst.data() + dst_order[i] * page_bytes;
    const std::size_t first = src_order[i] * page_bytes / 8;
    for (std::size_t w = 0; w < page_bytes / 8; ++w) {
      std::uint64_t word = 0;
      std::memcpy(&word, at + w * 8, sizeof word);
      if (word != word_at(first + w, seed)) return false;
    }
  }
  return true;
}

}  // namespace kvmend::bench
