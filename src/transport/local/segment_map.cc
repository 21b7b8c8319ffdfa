#include "transport/local/segment_map.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <cerrno>

#include "base/try.h"
#include "memory/pool_registry.h"

namespace kvmend::transport::local {

Result<const void*> map_sealed(UniqueFd fd, std::uint64_t bytes) {
  // F_GET_SEALS works on memfds only: a peer can't make us map a file that it may truncate.
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & memory::kSegmentSeals) != memory::kSegmentSeals)
    return fail(Code::kProtocolError, Origin::kPeer,
                fmt::format("shared memory with seals {:#x}", static_cast<unsigned>(seals)));
  // A hole that the owner punches into a file of reserved pages may leave none for us to fault in.
  struct statfs system{};
  if (::fstatfs(fd.get(), &system) != 0 ||
      (system.f_type == HUGETLBFS_MAGIC && (seals & memory::kSealFutureWrite) == 0))
    return fail(Code::kProtocolError, Origin::kPeer, "shared huge pages that may get holes");
  struct stat info{};
  if (::fstat(fd.get(), &info) != 0 || bytes == 0 ||
      static_cast<std::uint64_t>(info.st_size) != bytes)
    return fail(Code::kProtocolError, Origin::kPeer,
                fmt::format("shared memory of {} bytes instead of {}", info.st_size, bytes));
  void* at = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (at == MAP_FAILED)
    return std::unexpected(Status(Code::kResourceExhausted, Origin::kLocal,
                                  fmt::format("mapping {} bytes of a peer", bytes), errno));
  static_cast<void>(::madvise(at, bytes, MADV_HUGEPAGE));
  return at;
}

void unmap_sealed(const void* at, std::uint64_t bytes) {
  ::munmap(const_cast<void*>(at), bytes);  // NOLINT
}

Result<std::shared_ptr<const MappedSegment>> MappedSegment::map(UniqueFd fd, std::uint64_t bytes) {
  KVM_ASSIGN_OR_RETURN(const void* at, map_sealed(std::move(fd), bytes));
  return std::make_shared<const MappedSegment>(static_cast<const std::byte*>(at), bytes);
}

}  // namespace kvmend::transport::local
