#include "transport/local/small_pieces.h"

#include <cstring>
#include <memory>

#include "base/config.h"
#include "memory/guarded.h"
#include "transport/stretches.h"

namespace kvmend::transport::local {
namespace {

constexpr std::size_t kSmallBytes = 2'048;  // mean length

/// Of one thread: what was read, and the pieces of it one after the other.
struct Buffers {
  std::unique_ptr<std::byte[]> raw{new std::byte[config::kSmallCopyStepBytes]};
  std::unique_ptr<std::byte[]> packed{new std::byte[config::kSmallCopyStepBytes]};
};

Buffers& buffers() {
  thread_local Buffers own;
  return own;
}

bool load(const PeerProcess& process, std::span<const iovec> from, std::byte* into) {
  thread_local Stretches stretches;
  std::byte* const raw = buffers().raw.get();
  while (!from.empty()) {
    const std::size_t taken = stretches.fill(from, config::kSmallCopyStepBytes);
    const iovec here{raw, stretches.bytes()};
    if (process.read(std::span(&here, 1), stretches.spans()) !=
        static_cast<ssize_t>(stretches.bytes()))
      return false;
    for (std::size_t i = 0; i < taken; ++i) {
      std::memcpy(into, raw + stretches.at(i), from[i].iov_len);
      into += from[i].iov_len;
    }
    from = from.subspan(taken);
  }
  return true;
}

}  // namespace

std::size_t step_bytes(std::size_t first) {
  return first < kSmallBytes ? config::kSmallCopyStepBytes : config::kForeignCopyStepBytes;
}

bool are_small(std::span<const iovec> from, std::size_t bytes, bool foreign) {
  return from.size() >= config::kStageFromSlices && bytes <= config::kSmallCopyStepBytes &&
         bytes < from.size() * kSmallBytes &&
         (!foreign || sum_stretches(from).count * 2 <= from.size());
}

bool copy_small(const PeerProcess* process, std::span<const iovec> to, std::span<const iovec> from,
                std::optional<wire::Checksum>& sum) {
  std::byte* const packed = buffers().packed.get();
  std::size_t bytes = 0;
  for (const iovec& piece : from) {
    if (process == nullptr) std::memcpy(packed + bytes, piece.iov_base, piece.iov_len);
    bytes += piece.iov_len;
  }
  if (process != nullptr && !load(*process, from, packed)) return false;
  if (!memory::guarded_store(to, {packed, bytes})) return false;
  if (sum) sum->update({packed, bytes});
  return true;
}

}  // namespace kvmend::transport::local
