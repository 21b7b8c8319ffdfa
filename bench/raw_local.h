// What the machine itself can do between two processes of one host: the receiver copies scattered
// pages with two threads, from a mapped memfd or by process_vm_readv. The lines that kvmend's local
// transport is measured against.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvmend::bench {

/// Where the sender's pages are, as the receiver sees them.
struct RawSource {
  pid_t pid = 0;
  std::uint64_t address = 0;          ///< in that process
  const std::byte* mapped = nullptr;  ///< of its memfd here; null: process_vm_readv
};

/// Maps descriptor `fd` of process `pid` read-only, huge pages advised. Null: failed.
[[nodiscard]] const std::byte* map_peer_memfd(pid_t pid, int fd, std::size_t bytes);

/// Copies page src_order[i] of the source to page dst_order[i] of `to`, with two threads.
/// Non-temporal AVX-512 stores where the processor has them. False: failed.
[[nodiscard]] bool raw_copy(const RawSource& from, std::byte* to, std::size_t page_bytes,
                            std::span<const std::uint32_t> src_order,
                            std::span<const std::uint32_t> dst_order);

}  // namespace kvmend::bench
