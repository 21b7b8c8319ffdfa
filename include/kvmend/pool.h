// Memory that peers on the same host can copy from fastest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kvmend/status.h"

namespace kvmend {

namespace memory {
class PoolSegment;
}

/// What the pages of a pool are.
enum class PoolPages : std::uint8_t {
  kSmall = 0,            ///< 4 KiB: the system offers nothing larger
  kTransparentHuge = 1,  ///< advised; the kernel uses 2 MiB pages where it finds them
  kHuge = 2,             ///< reserved 2 MiB pages (hugetlb)
};

/// Zeroed memory for KV pages, given back with the object. Register it like any other memory; it
/// must be unregistered before the pool goes. Costs nothing until it is touched. Engines of the
/// same user on this host may map it read-only and copy from it without a system call.
///
/// A child of fork() shares it, and what the child writes the parent sees. Thread-compatible.
class MemoryPool {
 public:
  /// Errors: kInvalidArgument (0 bytes), kResourceExhausted (with errno).
  [[nodiscard]] static Result<std::unique_ptr<MemoryPool>> create(std::uint64_t bytes);
  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  /// Aligned to 2 MiB.
  [[nodiscard]] std::byte* data() const;
  [[nodiscard]] std::uint64_t size() const { return size_; }
  [[nodiscard]] PoolPages pages() const { return pages_; }

 private:
  MemoryPool(std::shared_ptr<memory::PoolSegment> segment, std::uint64_t size, PoolPages pages);
  std::shared_ptr<memory::PoolSegment> segment_;
  std::uint64_t size_;
  PoolPages pages_;
};

}  // namespace kvmend
