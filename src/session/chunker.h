// Cuts transfers into chunks. Pure.
#pragma once

#include "session/transfer_state.h"
#include "transport/chunk.h"

namespace kvmend::session {

/// The next part of `transfer` that hasn't been sent (what must be sent again comes first), at most
/// `max_bytes` and wire::kMaxSlicesPerPull slices (the smaller cap, so that a chunk may go as a
/// write or a pull); its cursor moves on. `has_unsent` must hold.
[[nodiscard]] ChunkSpan next_span(TransferState& transfer, std::uint32_t max_bytes);

/// How long its next chunk should be where chunks may have up to `most` bytes: a part of what is
/// left, in multiples of `least`.
[[nodiscard]] std::uint32_t chunk_bytes(const TransferState& transfer, std::uint32_t least,
                                        std::uint32_t most);

/// The chunk of a span that has its id, as a view of the transfer's pieces.
[[nodiscard]] transport::Chunk make_chunk(const TransferState& transfer, const ChunkSpan& span);

}  // namespace kvmend::session
