// The unit that travels in one frame: a run of pieces of a transfer.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "kvmend/ids.h"
#include "kvmend/transfer.h"

namespace kvmend::transport {

/// Contiguous on both sides: local bytes and their place in a region of the peer.
struct Piece {
  std::byte* local = nullptr;
  RegionRef region;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};

/// A view into a transfer's pieces; whoever posts it keeps them alive until the chunk is done,
/// detached, or its lane is closed.
struct Chunk {
  ChunkId id;
  Opcode opcode = Opcode::kWrite;
  GrantId grant;
  bool checksum = false;
  bool urgent = false;
  std::span<const Piece> pieces;
  std::uint64_t skip = 0;   ///< bytes of the first piece that belong to earlier chunks
  std::uint32_t bytes = 0;  ///< in total

  /// Calls `visit(std::byte* local, RegionRef, std::uint64_t offset, std::uint32_t length)` for
  /// each slice of this chunk.
  template <class Visit>
  void for_each_slice(Visit&& visit) const {
    std::uint64_t left = bytes;
    std::uint64_t from = skip;
    for (const Piece& piece : pieces) {
      if (left == 0) break;
      const std::uint64_t length = std::min(piece.length - from, left);
      visit(piece.local + from, piece.region, piece.offset + from,
            static_cast<std::uint32_t>(length));
      left -= length;
      from = 0;
    }
  }
};

}  // namespace kvmend::transport
