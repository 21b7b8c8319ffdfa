// The sending half of a lane: a queue of frames, sent scatter/gather straight from the pages.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/time.h"
#include "env/network.h"
#include "kvmend/ids.h"
#include "memory/grant_table.h"
#include "transport/chunk.h"
#include "transport/slice_copier.h"

namespace kvmend::transport::tcp {

/// Loop thread. Frames leave in order, but control bytes overtake frames that haven't been started.
class LaneWriter {
 public:
  explicit LaneWriter(SliceCopier& copier = host_copier()) : copier_(copier) {}

  struct Outcome {
    Status error;                   ///< not OK: close the connection
    std::size_t payload_bytes = 0;  ///< of pages, in this call
    std::size_t bytes = 0;
    bool blocked = false;  ///< the connection takes no more: wait for writability
    bool budget_used = false;
    /// Writes whose source memory isn't accessible, and whether nothing of them will be sent. Else
    /// what isn't sent goes as zeros.
    std::vector<std::pair<ChunkId, bool>> faulted;
    std::vector<ChunkId> replies;  ///< read replies that have left entirely
    std::vector<ChunkId> sent;     ///< writes and read requests that have left entirely
  };

  /// Mean length of slices from which on they aren't staged.
  void set_stage_below(std::uint64_t bytes) { stage_below_ = bytes; }
  /// Control bytes: whole frames, already encoded.
  void queue_urgent(std::vector<std::byte> frames);
  /// A write with its payload, or a read request.
  void queue_chunk(const Chunk& chunk);
  /// A chunk whose frame is whole and has no payload.
  void queue_encoded(const Chunk& chunk, std::vector<std::byte> frame);
  /// Answer to a read: the payload comes from `source`.
  void queue_reply(ChunkId chunk, std::vector<iovec> source, std::uint32_t bytes,
                   std::uint64_t checksum, bool has_checksum);

  /// The chunk's memory isn't read any more after this: an unsent frame is dropped (true), the rest
  /// of a started one is sent as zeros.
  bool detach(ChunkId chunk);
  /// What is left of a reply is sent as zeros (its grant has gone). False: not found.
  bool zero_reply(ChunkId chunk);

  /// Chunks of which nothing has left yet.
  [[nodiscard]] std::vector<ChunkId> unsent() const;

  Outcome flush(env::Stream& stream, std::size_t budget);

  [[nodiscard]] bool empty() const { return frames_.empty() && urgent_.empty(); }
  [[nodiscard]] std::size_t urgent_bytes() const { return urgent_bytes_; }

 private:
  struct Frame {
    ChunkId chunk;  // unset for control frames
    bool reply = false;
    bool started = false;
    bool built = false;
    Chunk plan;  // until built
    std::vector<std::byte> head;
    std::size_t head_sent = 0;
    std::vector<iovec> payload;
    std::vector<std::byte> staged;  // the payload's bytes, if it was gathered
    std::size_t place = 0;          // first entry of `payload` that isn't sent entirely
    [[nodiscard]] bool done() const { return head_sent == head.size() && place == payload.size(); }
  };

  [[nodiscard]] bool build(Frame& frame);
  bool stage(Frame& frame);
  static void zero_fill(Frame& frame);
  void insert(Frame frame);
  void merge_urgent();
  std::size_t gather(std::size_t budget, std::size_t max_frames, Outcome& outcome);
  void consume(std::size_t bytes, Outcome& outcome);
  void retire_front(Outcome& outcome);

  SliceCopier& copier_;
  std::uint64_t stage_below_ = 0;
  std::deque<Frame> frames_;
  std::vector<std::byte> urgent_;
  std::size_t urgent_bytes_ = 0;  // in `urgent_` and in control frames of `frames_`
  std::vector<iovec> iov_;
  std::size_t gathered_ = 0;  // frames in `iov_`
};

}  // namespace kvmend::transport::tcp
