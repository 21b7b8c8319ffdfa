#include "session/chunker.h"

#include <algorithm>

#include "base/check.h"
#include "base/config.h"
#include "wire/frame.h"

namespace kvmend::session {

ChunkSpan next_span(TransferState& transfer, std::uint32_t max_bytes) {
  if (!transfer.resend.empty()) {
    const ChunkSpan span = transfer.resend.front();
    transfer.resend.pop_front();
    return span;
  }
  KVM_CHECK(transfer.next_piece < transfer.pieces.size(), "nothing left to send");
  ChunkSpan span;
  span.first_piece = transfer.next_piece;
  span.skip = transfer.next_offset;
  while (transfer.next_piece < transfer.pieces.size() && span.bytes < max_bytes &&
         span.pieces < wire::kMaxSlicesPerPull) {
    const transport::Piece& piece = transfer.pieces[transfer.next_piece];
    const std::uint64_t left = piece.length - transfer.next_offset;
    const auto take =
        static_cast<std::uint32_t>(std::min<std::uint64_t>(left, max_bytes - span.bytes));
    span.bytes += take;
    ++span.pieces;
    if (take == left) {
      ++transfer.next_piece;
      transfer.next_offset = 0;
    } else {
      transfer.next_offset += take;
    }
  }
  transfer.cut_bytes += span.bytes;
  return span;
}

std::uint32_t chunk_bytes(const TransferState& transfer, std::uint32_t least, std::uint32_t most) {
  if (most <= least || transfer.cut_bytes >= transfer.total_bytes) return least;
  const std::uint64_t part =
      (transfer.total_bytes - transfer.cut_bytes) / config::kLongPullParts / least * least;
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(part, least, most));
}

transport::Chunk make_chunk(const TransferState& transfer, const ChunkSpan& span) {
  transport::Chunk chunk;
  chunk.id = span.id;
  chunk.opcode = transfer.opcode;
  chunk.grant = transfer.grant;
  chunk.checksum = transfer.checksum;
  chunk.urgent = transfer.urgent;
  chunk.pieces = std::span(transfer.pieces).subspan(span.first_piece, span.pieces);
  chunk.skip = span.skip;
  chunk.bytes = span.bytes;
  return chunk;
}

}  // namespace kvmend::session
