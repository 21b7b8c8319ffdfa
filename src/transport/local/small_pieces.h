// Copies of many small pieces. A system call that moves a list of pieces spends its time per piece
// at the side that belongs to another process (it pins that piece's pages anew each time): so small
// ones are read as whole stretches, with the gaps between them, and picked out here.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "transport/local/peer_process.h"
#include "wire/checksum.h"

namespace kvmend::transport::local {

/// How many bytes to copy in one step whose first piece has `first`: small ones have to stay in the
/// second-level cache.
[[nodiscard]] std::size_t step_bytes(std::size_t first);

/// Whether pieces of together `bytes` go faster this way. `foreign`: of another process; then they
/// must lie near each other as well.
[[nodiscard]] bool are_small(std::span<const iovec> from, std::size_t bytes, bool foreign);

/// Copies `from` to `to`, of equal lengths one by one, together at most
/// config::kSmallCopyStepBytes. `process`: whose memory `from` is; null: mapped memory of a
/// sealed segment, which can be read here. `to` is any memory of ours. Of the process only pages
/// are read that hold a wanted byte. Adds the bytes to `sum` when all are there. False: some
/// couldn't be read or written (some of `to` may have been): a plain copy says why. Any thread.
[[nodiscard]] bool copy_small(const PeerProcess* process, std::span<const iovec> to,
                              std::span<const iovec> from, std::optional<wire::Checksum>& sum);

}  // namespace kvmend::transport::local
