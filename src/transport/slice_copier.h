// Staging: small slices go through one buffer in place of one entry each of a system call. A
// frame's payload is the slices one after the other anyway, so each side decides for itself.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/config.h"

namespace kvmend::transport {

/// Copies between scattered pages and a buffer. On the host the kernel does it, so that pages which
/// have gone are an error (memory/guarded.h); for pages that the host can't touch (a GPU's) another
/// one runs a kernel there and waits for it. Loop thread.
class SliceCopier {
 public:
  virtual ~SliceCopier() = default;
  /// The parts one after the other to `into`. False: some can't be read.
  [[nodiscard]] virtual bool gather(std::span<const iovec> parts, std::byte* into) = 0;
  /// Bytes over the parts, in order, which hold them exactly. False: some can't be written; what
  /// lies before may have been.
  [[nodiscard]] virtual bool scatter(Bytes from, std::span<const iovec> parts) = 0;
};

[[nodiscard]] SliceCopier& host_copier();

/// Makes one of parts that follow each other in memory. Strips that lie apart at one end of a
/// transfer often touch at the other, and a system call costs by the part.
void join_parts(std::vector<iovec>& parts);

/// Whether a payload of so many slices is staged (docs/decisions/0020-staging-in-the-lane.md).
/// `below`: the mean length of slices from which on it isn't.
[[nodiscard]] constexpr bool is_worth_staging(std::uint64_t bytes, std::size_t slices,
                                              std::uint64_t below) {
  return slices >= config::kStageFromSlices && bytes < slices * below;
}

}  // namespace kvmend::transport
