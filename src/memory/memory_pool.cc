#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <string>

#include "base/try.h"
#include "kvmend/pool.h"
#include "memory/pool_registry.h"

namespace kvmend {
namespace memory {

static_assert(kSegmentSeals == (F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW));
static_assert(kSealFutureWrite == F_SEAL_FUTURE_WRITE);

PoolSegment::~PoolSegment() {
  ::munmap(base_, bytes_);
  ::munmap(alias_, bytes_);
}

PoolRegistry& PoolRegistry::of_process() {
  static PoolRegistry registry;
  return registry;
}

void PoolRegistry::add(const std::shared_ptr<PoolSegment>& segment) {
  const MutexLock lock(mutex_);
  segments_.emplace(segment->id(), segment);
  for (const auto& [handle, changed] : subscribers_) changed();
}

void PoolRegistry::remove(const PoolSegment& segment) {
  const MutexLock lock(mutex_);
  segments_.erase(segment.id());
  for (const auto& [handle, changed] : subscribers_) changed();
}

PoolSegments PoolRegistry::list() const {
  const MutexLock lock(mutex_);
  PoolSegments all;
  all.reserve(segments_.size());
  for (const auto& [id, segment] : segments_) all.push_back(segment);
  return all;
}

std::uint64_t PoolRegistry::subscribe(std::function<void()> changed) {
  const MutexLock lock(mutex_);
  subscribers_.emplace(++last_subscriber_, std::move(changed));
  return last_subscriber_;
}

void PoolRegistry::unsubscribe(std::uint64_t handle) {
  const MutexLock lock(mutex_);
  subscribers_.erase(handle);
}

}  // namespace memory

namespace {

constexpr std::uint64_t kHugePage = 2ULL << 20U;

Status exhausted(const char* what, std::uint64_t bytes, int error) {
  return {Code::kResourceExhausted, Origin::kLocal,
          fmt::format("{} of a pool of {} bytes", what, bytes), error};
}

// Whether madvise(MADV_HUGEPAGE) does anything for shared memory here.
bool shared_memory_may_be_huge() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  std::string line;
  std::getline(file, line);
  for (const char* mode : {"[always]", "[within_size]", "[advise]", "[force]"})
    if (line.find(mode) != std::string::npos) return true;
  return false;
}

struct Mapping {
  UniqueFd fd;
  std::byte* base = nullptr;
  std::byte* alias = nullptr;
};

// Maps `bytes` (a multiple of 2 MiB) of a memfd at a multiple of 2 MiB. Null: errno says why.
std::byte* map_aligned(int fd, std::uint64_t bytes) {
  void* reserved = ::mmap(nullptr, bytes + kHugePage, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return nullptr;
  const auto start = reinterpret_cast<std::uintptr_t>(reserved);
  const std::uintptr_t aligned = (start + kHugePage - 1) & ~(kHugePage - 1);
  void* base = ::mmap(reinterpret_cast<void*>(aligned), bytes, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_FIXED, fd, 0);
  if (base == MAP_FAILED) {
    const int error = errno;
    ::munmap(reserved, bytes + kHugePage);
    errno = error;
    return nullptr;
  }
  if (aligned > start) ::munmap(reserved, aligned - start);
  const std::uintptr_t end = aligned + bytes;
  const std::uintptr_t reserved_end = start + bytes + kHugePage;
  if (reserved_end > end) ::munmap(reinterpret_cast<void*>(end), reserved_end - end);
  return static_cast<std::byte*>(base);
}

// A new memfd of `bytes`, mapped twice and sealed.
Result<Mapping> map_memfd(std::uint64_t bytes, unsigned extra_flags) {
  Mapping mapping;
  mapping.fd =
      UniqueFd(::memfd_create("kvmend-pool", MFD_CLOEXEC | MFD_ALLOW_SEALING | extra_flags));
  if (!mapping.fd.is_open()) return std::unexpected(exhausted("memfd_create", bytes, errno));
  if (::ftruncate(mapping.fd.get(), static_cast<off_t>(bytes)) != 0)
    return std::unexpected(exhausted("ftruncate", bytes, errno));
  mapping.base = map_aligned(mapping.fd.get(), bytes);
  if (mapping.base == nullptr) return std::unexpected(exhausted("mmap", bytes, errno));
  mapping.alias = map_aligned(mapping.fd.get(), bytes);
  // After our own writable mappings: nobody makes another.
  if (mapping.alias == nullptr ||
      (::fcntl(mapping.fd.get(), F_ADD_SEALS, memory::kSegmentSeals | memory::kSealFutureWrite) !=
           0 &&
       ::fcntl(mapping.fd.get(), F_ADD_SEALS, memory::kSegmentSeals) != 0)) {
    const int error = errno;
    ::munmap(mapping.base, bytes);
    if (mapping.alias != nullptr) ::munmap(mapping.alias, bytes);
    return std::unexpected(exhausted(mapping.alias == nullptr ? "mmap" : "sealing", bytes, error));
  }
  return mapping;
}

}  // namespace

MemoryPool::MemoryPool(std::shared_ptr<memory::PoolSegment> segment, std::uint64_t size,
                       PoolPages pages)
    : segment_(std::move(segment)), size_(size), pages_(pages) {}

MemoryPool::~MemoryPool() {
  memory::PoolRegistry::of_process().remove(*segment_);
}

std::byte* MemoryPool::data() const {
  return segment_->base();
}

Result<std::unique_ptr<MemoryPool>> MemoryPool::create(std::uint64_t bytes) {
  if (bytes == 0 || bytes > (1ULL << 46U))
    return fail(Code::kInvalidArgument, Origin::kCaller, fmt::format("a pool of {} bytes", bytes));
  const std::uint64_t rounded = (bytes + kHugePage - 1) & ~(kHugePage - 1);
  PoolPages pages = PoolPages::kTransparentHuge;
  Mapping mapping;
  if (shared_memory_may_be_huge()) {
    KVM_ASSIGN_OR_RETURN(mapping, map_memfd(rounded, 0));
    if (::madvise(mapping.base, rounded, MADV_HUGEPAGE) != 0 ||
        ::madvise(mapping.alias, rounded, MADV_HUGEPAGE) != 0)
      pages = PoolPages::kSmall;
  } else if (auto huge = map_memfd(rounded, MFD_HUGETLB)) {
    // The mapping has reserved its pages: touching them can't fail.
    mapping = std::move(*huge);
    pages = PoolPages::kHuge;
  } else {
    KVM_ASSIGN_OR_RETURN(mapping, map_memfd(rounded, 0));
    pages = PoolPages::kSmall;
  }
  memory::PoolRegistry& registry = memory::PoolRegistry::of_process();
  auto segment = std::make_shared<memory::PoolSegment>(registry.next_id(), std::move(mapping.fd),
                                                       mapping.base, mapping.alias, rounded);
  registry.add(segment);
  return std::unique_ptr<MemoryPool>(new MemoryPool(std::move(segment), bytes, pages));
}

}  // namespace kvmend
