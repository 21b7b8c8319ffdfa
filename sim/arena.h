// Memory at the same addresses in every run: peers tell each other addresses, so those are part of
// the trace.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/check.h"

namespace kvmend::sim {

/// One per thread; the first thread that asks (the one that replays) always gets the same place.
class Arena {
 public:
  static Arena& of_this_thread() {
    thread_local Arena arena;
    return arena;
  }
  /// Everything handed out is free again: a new world begins.
  void reset() { used_ = 0; }
  /// `bytes` of zeros; stays until `reset`.
  std::byte* take(std::size_t bytes) {
    const std::size_t rounded = (bytes + kAlign - 1) / kAlign * kAlign;
    KVM_CHECK(used_ + rounded <= kBytes, "a world needs more memory than the arena has");
    std::byte* at = base_ + used_;
    used_ += rounded;
    for (std::size_t i = 0; i < bytes; ++i) at[i] = std::byte{0};
    return at;
  }

 private:
  static constexpr std::size_t kBytes = 1ULL << 30U;
  static constexpr std::size_t kAlign = 4'096;
  static constexpr std::uintptr_t kFirst = 0x2000'0000'0000;

  Arena() {
    static std::atomic<std::uintptr_t> number{0};
    void* wanted = reinterpret_cast<void*>(kFirst + number.fetch_add(1) * kBytes);
    void* got = ::mmap(wanted, kBytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    KVM_CHECK(got == wanted, "no room for the simulation's memory");
    base_ = static_cast<std::byte*>(got);
  }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena() { ::munmap(base_, kBytes); }

  std::byte* base_ = nullptr;
  std::size_t used_ = 0;
};

}  // namespace kvmend::sim
