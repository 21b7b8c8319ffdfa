// What a lane and a transport that pulls need of each other. Whoever receives bytes copies them
// itself from their owner's memory: the target of a write from the initiator's, the initiator of a
// read from the target's. Frames, acknowledgements and epochs stay the lane's.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/time.h"
#include "kvmend/ids.h"
#include "kvmend/status.h"
#include "transport/chunk.h"
#include "wire/control.h"
#include "wire/frame.h"

namespace kvmend::transport {

/// A pull frame, or an offer to a read of ours, whose destinations have been resolved.
struct PullRequest {
  ChunkId chunk;               ///< as its owner calls it: for a read its loan
  GrantId grant;               ///< ours that allows the write; unset for a read
  Time expires = kForever;     ///< of the grant
  std::uint64_t removals = 0;  ///< of the region table when `where` was resolved
  bool has_checksum = false;
  std::uint64_t checksum = 0;
  std::uint32_t bytes = 0;
  std::vector<wire::WireSlice> slices;
  std::vector<iovec> where;  ///< one entry for each slice
  std::vector<wire::PullSource> sources;
};

/// The receiving lane. Loop thread.
class PullSink {
 public:
  virtual ~PullSink() = default;
  /// The copy is over. OK: the bytes lie in `where`, and when the last was read the source was
  /// still valid. The lane asks its grant once more before it acknowledges.
  virtual void on_pulled(const PullRequest& request, const Status& result) = 0;
  /// A frame that the other end put into shared memory instead of the stream.
  virtual void on_shared_frame(Bytes frame) = 0;
  /// The process whose memory this lane reads has gone.
  virtual void on_source_gone(const Status& why) = 0;
};

/// One lane's pulls. Destroying it stops them: nothing is written any more afterwards, and no event
/// follows. Loop thread.
class PullReceiver {
 public:
  virtual ~PullReceiver() = default;
  /// Whether the other side's memory can be reached now.
  [[nodiscard]] virtual bool ready() const = 0;
  /// `PullSink::on_pulled` follows, at the earliest inside this call.
  virtual void pull(PullRequest request) = 0;
  /// Ends one request: nothing of it is written any more afterwards, and no event follows for it.
  virtual void stop(ChunkId chunk) = 0;
  /// Requests that aren't answered yet.
  [[nodiscard]] virtual std::size_t waiting() const = 0;
  /// Hands a frame to the other end's `on_shared_frame`. False: it must go by the stream.
  virtual bool put(Bytes frame) = 0;
};

/// One lane's offers. Destroying it withdraws all of them. Loop thread.
class PullSender {
 public:
  virtual ~PullSender() = default;
  /// Whether chunks can be offered now.
  [[nodiscard]] virtual bool ready() const = 0;
  /// Appends the chunk's pull frame and opens its memory to the peer. False: send it as a write.
  virtual bool offer(const Chunk& chunk, std::vector<std::byte>& frame) = 0;
  /// Opens `source` to the peer for a read of the peer's under `grant`, and says where it finds the
  /// bytes. The loan ends, for the peer, also when the grant or a region in it does; `withdraw` it
  /// in any case. Unset: the bytes must be sent.
  virtual std::optional<ChunkId> lend(GrantId grant, std::span<const iovec> source,
                                      std::vector<wire::PullSource>& sources) = 0;
  /// Closes the memory of a chunk or loan again. `acknowledged`: the peer has answered. Else waits
  /// for a copy step that is reading it: only one of a peer that stands still is left, and never
  /// counts; then the result is false.
  virtual bool withdraw(ChunkId chunk, bool acknowledged) = 0;
  /// Hands a frame to the other end's `on_shared_frame`. False: it must go by the stream.
  virtual bool put(Bytes frame) = 0;
  /// The peer couldn't read a chunk: chunks go as writes from now on.
  virtual void give_up(const Status& why) = 0;
};

/// Makes both. One per engine. Loop thread.
class PullPort {
 public:
  virtual ~PullPort() = default;
  /// How this process introduces itself in hellos and their answers.
  [[nodiscard]] virtual const wire::HostIdentity& identity() const = 0;
  /// Null: the owner's memory can't be reached (the reason has been logged once). `lane`: what both
  /// ends call their lane, unique on this host and for each direction of the bytes.
  virtual std::unique_ptr<PullReceiver> receive_from(const wire::HostIdentity& owner,
                                                     std::uint64_t lane, PullSink& sink) = 0;
  virtual std::unique_ptr<PullSender> send_to(const wire::HostIdentity& receiver,
                                              std::uint64_t lane, PullSink& sink) = 0;
};

}  // namespace kvmend::transport
