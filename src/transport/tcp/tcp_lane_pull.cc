// The part of a lane that belongs to the local transport: chunks whose receiver copies them itself.
#include "base/config.h"
#include "transport/tcp/answers.h"
#include "transport/tcp/tcp_lane.h"

namespace kvmend::transport::tcp {

Status TcpLane::on_pull(const wire::FrameHeader& header, Bytes body) {
  auto data = wire::parse_pull_body(header, body, slices_, sources_);
  if (!data) return data.error();
  const ChunkId chunk(header.id);
  if (!pull_receiver_) {
    push_ack(to_entry(chunk, {Code::kUnavailable, Origin::kLocal, "this lane doesn't pull"}));
    return Status::ok();
  }
  PullRequest request;
  request.removals = context_.regions.removals();
  std::uint32_t argument = 0;
  bool scratch = false;
  const Status status =
      resolve(data->grant, Access::kRemoteWrite, slices_, &argument, request.where, scratch);
  if (!status.is_ok()) {
    ++context_.counters.frames_refused;
    push_ack(to_entry(chunk, status, argument));
    return Status::ok();
  }
  if (!scratch && context_.grants.has_landed(data->grant, serving_.initiator, chunk)) {
    push_ack(to_entry(chunk, Status::ok()));  // as in on_write
    return Status::ok();
  }
  request.chunk = chunk;
  request.grant = data->grant;
  if (const memory::Grant* grant = context_.grants.find(data->grant))
    request.expires = grant->expires;
  request.has_checksum = (header.flags & wire::kFlagChecksum) != 0;
  request.checksum = data->checksum;
  for (const wire::WireSlice& slice : slices_) request.bytes += slice.length;
  request.slices = slices_;
  request.sources = sources_;
  pull_receiver_->pull(std::move(request));
  update_reading();
  return Status::ok();
}

void TcpLane::on_pulled(const PullRequest& request, const Status& result) {
  if (state_ != State::kOpen) return;
  if (initiator_) return on_read_pulled(request, result);
  Status status = result;
  std::uint32_t argument = 0;
  if (status.is_ok()) {
    context_.counters.payload_bytes_received += request.bytes;
    context_.counters.pulled_bytes_received += request.bytes;
    // Nothing of an ended grant is ever reported as landed.
    if (!context_.grants.still_allowed(request.grant, context_.loop.now(), request.removals)) {
      std::vector<iovec> where;
      status = context_.grants.resolve(request.grant, Access::kRemoteWrite, serving_.initiator,
                                       request.slices, context_.loop.now(), where, &argument);
    }
  }
  if (status.is_ok()) {
    context_.grants.note_landed(request.grant, request.slices, serving_.initiator, request.chunk);
  } else {
    ++context_.counters.frames_refused;
  }
  acks_.push_back(to_entry(request.chunk, status, argument));
  if (acks_.size() >= wire::kMaxAcksPerFrame) flush_acks();
  flush_soon();
}

// A copy's end comes outside of `on_readable`, and in batches.
void TcpLane::flush_soon() {
  if (in_read_ || flush_scheduled_) return;
  context_.loop.at_end_of_turn([this, alive = std::weak_ptr(alive_)] {
    if (alive.expired()) return;
    flush_scheduled_ = false;
    if (state_ != State::kOpen) return;
    flush_acks();
    flush();
  });
  flush_scheduled_ = true;
}

bool TcpLane::offer_pull(const Chunk& chunk, bool& sent) {
  std::vector<std::byte> frame;
  if (!pull_sender_ || !pull_sender_->offer(chunk, frame)) return false;
  // Bulk goes by the stream, which holds back who sends too much.
  if (outstanding_ <= config::kSmallTurnBytes && pull_sender_->put(frame)) {
    sent = true;
    note_put();
  } else {
    writer_.queue_encoded(chunk, std::move(frame));
  }
  return true;
}

namespace {

// Nothing but pulls, reads that are copied, and their answers comes by shared memory, and whole.
bool may_be_shared(wire::FrameType type, bool to_initiator) {
  using enum wire::FrameType;
  return to_initiator ? type == kAck || type == kReadOffer || type == kReadEnd
                      : type == kPull || type == kRead || type == kReadTaken;
}

}  // namespace

void TcpLane::on_shared_frame(Bytes frame) {
  if (state_ != State::kOpen) return;
  if (frame.size() < wire::kHeaderBytes)
    return fail(protocol_error("a short frame in shared memory"));
  const auto header = wire::parse_header(frame.first(wire::kHeaderBytes));
  const Bytes body = frame.subspan(wire::kHeaderBytes);
  if (!header) return fail(header.error());
  if (header->body_bytes != body.size() || !may_be_shared(header->type, initiator_) ||
      !wire::check_matches(frame.first(wire::kHeaderBytes), body))
    return fail(protocol_error("a frame in shared memory that doesn't belong there"));
  if ((header->type == wire::FrameType::kPull && pull_receiver_ &&
       pull_receiver_->waiting() >= config::kMaxQueuedPulls) ||
      (header->type == wire::FrameType::kRead && jobs_.size() >= 2 * config::kMaxQueuedReads))
    return fail(protocol_error("more frames in shared memory than are taken"));
  bytes_in_ += frame.size();
  in_read_ = true;
  std::vector<iovec> none;  // no payload comes this way
  const Status status =
      initiator_ ? on_initiator_frame(*header, body, none) : on_acceptor_frame(*header, body, none);
  in_read_ = false;
  if (state_ == State::kClosed) return;
  if (!status.is_ok()) return fail(status);
  flush_acks();
  flush();
  expect_more_after(frame.size());
}

void TcpLane::end_write(ChunkId chunk, WriteEnd how) {
  const auto at = writes_.find(chunk);
  if (at == writes_.end()) return;
  const std::uint32_t bytes = at->second.chunk.bytes;
  const bool pulled = at->second.pulled;
  writes_.erase(at);
  bool over = how != WriteEnd::kLeft;
  if (pulled) {
    if (how == WriteEnd::kAnswered) {
      context_.counters.payload_bytes_sent += bytes;
      context_.counters.pulled_bytes_sent += bytes;
    }
    // Once it is closed and nobody reads it, a pull has no remnant.
    if (pull_sender_) over = pull_sender_->withdraw(chunk, how != WriteEnd::kLeft);
  }
  if (over) {
    outstanding_ -= bytes;
  } else {
    remnants_.emplace(chunk, Remnant{bytes, pulled});
    if (pulled) ++pulled_remnants_;
  }
}

void TcpLane::end_remnant(ChunkId chunk) {
  const auto at = remnants_.find(chunk);
  if (at == remnants_.end()) return;
  outstanding_ -= at->second.bytes;
  if (at->second.pulled) --pulled_remnants_;
  remnants_.erase(at);
  if (observer_ != nullptr) observer_->on_remnant_over(*this);
}

Remnants TcpLane::remnants() const {
  return {remnants_.size() - pulled_remnants_, pulled_remnants_};
}

}  // namespace kvmend::transport::tcp
