#include "transport/local/board.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/try.h"
#include "memory/pool_registry.h"
#include "transport/local/segment_map.h"

namespace kvmend::transport::local {

Result<std::unique_ptr<Board>> Board::create() {
  UniqueFd fd(::memfd_create("kvmend-board", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.is_open() || ::ftruncate(fd.get(), sizeof(BoardLayout)) != 0)
    return std::unexpected(
        Status(Code::kResourceExhausted, Origin::kLocal, "memfd of the board", errno));
  void* at = ::mmap(nullptr, sizeof(BoardLayout), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (at == MAP_FAILED)
    return std::unexpected(
        Status(Code::kResourceExhausted, Origin::kLocal, "mapping the board", errno));
  auto board = std::unique_ptr<Board>(new Board(std::move(fd), static_cast<BoardLayout*>(at)));
  if (::fcntl(board->fd(), F_ADD_SEALS, memory::kSegmentSeals | memory::kSealFutureWrite) != 0 &&
      ::fcntl(board->fd(), F_ADD_SEALS, memory::kSegmentSeals) != 0)
    return std::unexpected(
        Status(Code::kResourceExhausted, Origin::kLocal, "sealing the board", errno));
  return board;
}

Board::~Board() {
  ::munmap(layout_, sizeof(BoardLayout));
}

bool Board::open(ChunkId chunk) {
  auto& slot = layout_->open[chunk.value % config::kLocalChunkSlots];
  if (slot.load(std::memory_order_relaxed) != 0) return false;
  slot.store(chunk.value);
  return true;
}

void Board::close(ChunkId chunk) {
  auto& slot = layout_->open[chunk.value % config::kLocalChunkSlots];
  if (slot.load(std::memory_order_relaxed) == chunk.value) slot.store(0);
}

void Board::mark(std::size_t reader, ChunkId chunk) {
  layout_->readers[reader].chunk.store(chunk.value);
}

std::optional<std::size_t> Board::take_ring() {
  const auto free = std::ranges::find(ring_taken_, false);
  if (free == ring_taken_.end()) return std::nullopt;
  *free = true;
  const auto index = static_cast<std::size_t>(free - ring_taken_.begin());
  RingLayout& ring = layout_->rings[index];
  ring.taken.store(0);
  for (RingLayout::Entry& entry : ring.entries) entry.turn.store(0);
  return index;
}

Result<std::unique_ptr<PeerBoard>> PeerBoard::map(UniqueFd fd) {
  KVM_ASSIGN_OR_RETURN(const void* at, map_sealed(std::move(fd), sizeof(BoardLayout)));
  return std::unique_ptr<PeerBoard>(new PeerBoard(static_cast<const BoardLayout*>(at)));
}

PeerBoard::~PeerBoard() {
  unmap_sealed(layout_, sizeof(BoardLayout));
}

}  // namespace kvmend::transport::local
