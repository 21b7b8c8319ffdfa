// Which chunks a peer may read at this moment, and which ones are being read: two tables in shared
// memory, each written by its owner alone.
//
// The sender opens a chunk before it offers it, and closes it before its memory goes to somebody
// else. The receiver marks a chunk as being read, then looks whether it is open, copies a step, and
// takes the mark away; after the last step it looks again. Both sides store first and load second
// (sequentially consistent), so either the receiver sees the chunk closed, or the sender sees the
// mark and waits for it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/config.h"
#include "base/unique_fd.h"
#include "kvmend/ids.h"
#include "kvmend/status.h"
#include "transport/local/ring.h"

namespace kvmend::transport::local {

inline constexpr std::size_t kBoardReaders = 3;  // two copy threads and the loop

/// As it lies in shared memory.
struct BoardLayout {
  struct alignas(64) Reader {
    std::atomic<std::uint64_t> chunk;  // being read; 0: none
  };
  std::array<Reader, 8> readers;
  std::array<std::atomic<std::uint64_t>, config::kLocalChunkSlots> open;  // by chunk id, modulo
  std::atomic<std::uint32_t> awake;  // 1: the owner's loop looks at rings
  std::array<RingLayout, kRings> rings;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

/// Our own. `open` and `close`: loop thread; `mark`: one thread for each reader.
class Board {
 public:
  /// Errors: kResourceExhausted.
  static Result<std::unique_ptr<Board>> create();
  ~Board();
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  [[nodiscard]] int fd() const { return fd_.get(); }
  /// False: another chunk has the place.
  [[nodiscard]] bool open(ChunkId chunk);
  void close(ChunkId chunk);
  /// 0 takes the mark away.
  void mark(std::size_t reader, ChunkId chunk);

  void set_awake(bool awake) { layout_->awake.store(awake ? 1 : 0); }
  /// A cleared ring for a new link; nothing when all are taken. Loop thread.
  std::optional<std::size_t> take_ring();
  void give_ring(std::size_t index) { ring_taken_[index] = false; }
  RingLayout& ring(std::size_t index) { return layout_->rings[index]; }

 private:
  Board(UniqueFd fd, BoardLayout* layout) : fd_(std::move(fd)), layout_(layout) {}
  UniqueFd fd_;
  BoardLayout* layout_;
  std::array<bool, kRings> ring_taken_{};
};

/// A peer's, mapped read-only. Any thread.
class PeerBoard {
 public:
  /// Checks seals and size. Errors: kProtocolError, kResourceExhausted.
  static Result<std::unique_ptr<PeerBoard>> map(UniqueFd fd);
  ~PeerBoard();
  PeerBoard(const PeerBoard&) = delete;
  PeerBoard& operator=(const PeerBoard&) = delete;

  [[nodiscard]] bool is_open(ChunkId chunk) const {
    return layout_->open[chunk.value % config::kLocalChunkSlots].load() == chunk.value;
  }
  [[nodiscard]] bool is_awake() const { return layout_->awake.load() != 0; }
  [[nodiscard]] const RingLayout& ring(std::size_t index) const { return layout_->rings[index]; }
  [[nodiscard]] bool is_reading(ChunkId chunk) const {
    for (std::size_t i = 0; i < kBoardReaders; ++i)
      if (layout_->readers[i].chunk.load() == chunk.value) return true;
    return false;
  }

 private:
  explicit PeerBoard(const BoardLayout* layout) : layout_(layout) {}
  const BoardLayout* layout_;
};

}  // namespace kvmend::transport::local
