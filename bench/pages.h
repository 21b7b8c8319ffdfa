// Scattered pages to move: a source pool, a destination pool, and two independent random orders.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvmend::bench {

enum class PageMemory : std::uint8_t {
  kSmall,  ///< anonymous memory, 4 KiB mappings
  kHuge,   ///< anonymous memory, huge pages advised
};

/// Memory that is given back with the object; zeroed and touched.
class Buffer {
 public:
  Buffer(std::size_t bytes, PageMemory memory);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  [[nodiscard]] std::byte* data() { return data_; }
  [[nodiscard]] std::size_t size() const { return size_; }

 private:
  void* mapping_ = nullptr;
  std::size_t mapped_ = 0;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// 0 .. count-1 in an order that `seed` decides.
[[nodiscard]] std::vector<std::uint32_t> random_order(std::size_t count, std::uint64_t seed);
/// Every 8 bytes differ and depend on `seed`.
void fill(std::span<std::byte> bytes, std::uint64_t seed);
/// Whether page dst_order[i] of `dst` holds what page src_order[i] of a source filled with `seed`
/// holds.
[[nodiscard]] bool holds(std::span<const std::byte> dst, std::size_t page_bytes,
                         std::span<const std::uint32_t> src_order,
                         std::span<const std::uint32_t> dst_order, std::uint64_t seed);

}  // namespace kvmend::bench
