// The receiving half of a lane: bytes in, frames out; payloads go straight to where they belong.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "env/network.h"
#include "transport/slice_copier.h"
#include "wire/frame.h"

namespace kvmend::transport::tcp {

/// Decides what happens to frames. Every call may close the lane; the reader asks `closed()` after.
class FrameSink {
 public:
  virtual ~FrameSink() = default;
  /// A whole header and body. When the header announces a payload, fill `into` with the places for
  /// exactly payload_bytes, or leave it empty to discard it. An error closes the connection.
  virtual Status on_frame(const wire::FrameHeader& header, Bytes body,
                          std::vector<iovec>& into) = 0;
  /// Asked before every read into a payload's place. False: the rest is discarded.
  virtual bool payload_still_allowed() = 0;
  /// Whether the payload's places can be written by the host until the frame ends.
  [[nodiscard]] virtual bool places_stay() const { return false; }
  /// These just arrived where they belong (not called for discarded ones).
  virtual void on_payload_bytes(std::span<const iovec> landed, std::size_t bytes) = 0;
  virtual void on_payload_discarded(std::size_t bytes) = 0;
  /// The places of the payload can't be written; the rest is discarded.
  virtual void on_payload_fault() = 0;
  virtual void on_payload_end() = 0;
  [[nodiscard]] virtual bool closed() const = 0;
};

/// Loop thread.
class LaneReader {
 public:
  LaneReader(FrameSink& sink, std::uint32_t max_first_body, SliceCopier& copier = host_copier());

  /// Reads until the stream has no more, the budget is used up, or the sink closes. Returns the
  /// reason to close the connection, if there is one (kEof: orderly).
  struct Outcome {
    Status error;  ///< not OK: close
    bool eof = false;
    std::size_t bytes = 0;
    bool budget_used = false;
  };
  Outcome pump(env::Stream& stream, std::size_t budget);

  /// Mean length of slices from which on they aren't staged. On the host none are: the system call
  /// scatters them for less (docs/decisions/0020-staging-in-the-lane.md).
  void set_stage_below(std::uint64_t bytes) { stage_below_ = bytes; }
  /// Stop handing out frames (backpressure) until `resume`: whole frames stay in the buffer.
  void set_paused(bool paused) { paused_ = paused; }
  /// Frames already buffered are handed out without reading. Same outcome as `pump`.
  Outcome drain_buffered();

 private:
  Status parse();
  Status start_frame(Bytes header_bytes, Bytes body);
  void take_payload_from_buffer();
  std::span<const iovec> next_places(std::size_t bytes);
  void advance_payload(std::size_t bytes);
  void discard_rest();
  std::size_t fill_iov();
  void scatter(std::size_t bytes);
  [[nodiscard]] std::size_t buffered() const { return end_ - begin_; }

  FrameSink& sink_;
  SliceCopier& copier_;
  std::uint64_t stage_below_ = 0;
  std::vector<std::byte> staging_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  std::uint32_t max_first_body_;
  bool seen_first_ = false;
  bool paused_ = false;

  // The frame whose body or payload is still coming.
  wire::FrameHeader header_{};
  bool have_header_ = false;
  std::vector<std::byte> big_body_;  // a body larger than the staging buffer: header, then body
  std::vector<iovec> places_;
  std::size_t place_ = 0;
  std::uint64_t payload_left_ = 0;
  bool discarding_ = false;
  bool staging_payload_ = false;  // it comes by way of the shared buffer
  std::vector<iovec> iov_;
  std::vector<iovec> landed_;
};

}  // namespace kvmend::transport::tcp
