#include "memory/guarded.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <vector>

#include "base/unique_fd.h"

namespace kvmend::memory {
namespace {

constexpr std::size_t kScratchBytes = 64U << 10U;  // stays in the second-level cache
constexpr std::size_t kMaxIov = 1'024;
constexpr std::size_t kSystemPage = 4'096;

/// A buffer of this thread that the kernel copies to and from: a small memfd, mapped. What is
/// written to its descriptor can be read here, and the other way round, and the kernel checks the
/// other side's addresses in those calls. Without a descriptor left it is plain memory, and the
/// calls are process_vm_readv, which not every sandbox permits.
class Scratch {
 public:
  Scratch() : fd_(::memfd_create("kvmend-scratch", MFD_CLOEXEC)) {
    if (!fd_.is_open() || ::ftruncate(fd_.get(), kScratchBytes) != 0) return;
    void* at = ::mmap(nullptr, kScratchBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
    if (at != MAP_FAILED) mapped_ = static_cast<std::byte*>(at);
  }
  ~Scratch() {
    if (mapped_ != nullptr) ::munmap(mapped_, kScratchBytes);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  [[nodiscard]] pid_t owner() const { return owner_; }

  bool store(std::span<const iovec> to, Bytes from) {
    if (mapped_ == nullptr) {
      const iovec here{const_cast<std::byte*>(from.data()), from.size()};  // NOLINT: only read
      return guarded_copy(to, std::span(&here, 1)) == static_cast<ssize_t>(from.size());
    }
    std::memcpy(mapped_, from.data(), from.size());
    return ::preadv(fd_.get(), to.data(), static_cast<int>(to.size()), 0) ==
           static_cast<ssize_t>(from.size());
  }
  /// The bytes, in the buffer; null: they can't be read.
  const std::byte* load(std::span<const iovec> from, std::size_t bytes) {
    if (mapped_ == nullptr) {
      plain_.resize(kScratchBytes);
      const iovec here{plain_.data(), bytes};
      return guarded_copy(std::span(&here, 1), from) == static_cast<ssize_t>(bytes) ? plain_.data()
                                                                                    : nullptr;
    }
    return ::pwritev(fd_.get(), from.data(), static_cast<int>(from.size()), 0) ==
                   static_cast<ssize_t>(bytes)
               ? mapped_
               : nullptr;
  }

 private:
  UniqueFd fd_;
  std::byte* mapped_ = nullptr;
  std::vector<std::byte> plain_;
  pid_t owner_ = ::getpid();
};

// A forked child would share its parent's.
Scratch& scratch() {
  thread_local std::optional<Scratch> own;
  if (!own || own->owner() != ::getpid()) own.emplace();
  return *own;
}

/// Walks `parts` in runs of at most kMaxIov entries and `most` bytes.
class Runs {
 public:
  explicit Runs(std::span<const iovec> parts) : parts_(parts) {}

  /// The next run; empty at the end.
  std::span<const iovec> next(std::size_t most) {
    std::size_t count = 0;
    bytes_ = 0;
    while (part_ < parts_.size() && count < kMaxIov && bytes_ < most) {
      const iovec& part = parts_[part_];
      const std::size_t n = std::min(part.iov_len - offset_, most - bytes_);
      if (n > 0) run_[count++] = {static_cast<std::byte*>(part.iov_base) + offset_, n};
      bytes_ += n;
      offset_ += n;
      if (offset_ == part.iov_len) {
        ++part_;
        offset_ = 0;
      }
    }
    return {run_.data(), count};
  }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  std::span<const iovec> parts_;
  std::size_t part_ = 0;
  std::size_t offset_ = 0;
  std::size_t bytes_ = 0;
  std::array<iovec, kMaxIov> run_;
};

}  // namespace

bool guarded_store(std::span<const iovec> to, Bytes from) {
  Scratch& buffer = scratch();
  Runs runs(to);
  while (!from.empty()) {
    const auto run = runs.next(std::min(from.size(), kScratchBytes));
    if (runs.bytes() == 0) return true;
    if (!buffer.store(run, from.first(runs.bytes()))) return false;
    from = from.subspan(runs.bytes());
  }
  return true;
}

bool guarded_load(std::byte* into, std::span<const iovec> parts) {
  Scratch& buffer = scratch();
  Runs runs(parts);
  while (true) {
    const auto run = runs.next(kScratchBytes);
    if (runs.bytes() == 0) return true;
    const std::byte* bytes = buffer.load(run, runs.bytes());
    if (bytes == nullptr) return false;
    std::memcpy(into, bytes, runs.bytes());
    into += runs.bytes();
  }
}

bool guarded_sum(std::span<const iovec> parts, wire::Checksum& sum) {
  Scratch& buffer = scratch();
  Runs runs(parts);
  while (true) {
    const auto run = runs.next(kScratchBytes);
    if (runs.bytes() == 0) return true;
    const std::byte* bytes = buffer.load(run, runs.bytes());
    if (bytes == nullptr) return false;
    sum.update({bytes, runs.bytes()});
  }
}

std::optional<std::uint64_t> guarded_checksum(std::span<const iovec> parts) {
  wire::Checksum sum;
  if (!guarded_sum(parts, sum)) return std::nullopt;
  return sum.value();
}

ssize_t guarded_copy(std::span<const iovec> to, std::span<const iovec> from) {
  const ssize_t n =
      ::process_vm_readv(::getpid(), to.data(), to.size(), from.data(), from.size(), 0);
  return n < 0 ? -errno : n;
}

bool is_mapped(const void* base, std::size_t length) {
  const auto address = reinterpret_cast<std::uintptr_t>(base);
  const std::uintptr_t first = address & ~(kSystemPage - 1);
  // For shared memory MS_ASYNC does nothing but look at the mappings.
  return ::msync(reinterpret_cast<void*>(first), length + (address - first), MS_ASYNC) ==
         0;  // NOLINT
}

}  // namespace kvmend::memory
