// The part of a lane that belongs to the local transport: chunks whose receiver copies them itself.
#include "base/config.h"
#include "transport/tcp/entries.h"
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
  if (in_read_ || ack_flush_scheduled_) return;
  ack_flush_scheduled_ = true;
  context_.loop.at_end_of_turn([this, alive = std::weak_ptr(alive_)] {
    if (alive.expired()) return;
    ack_flush_scheduled_ = false;
    if (state_ != State::kOpen) return;
    flush_acks();
    flush();
  });
}

bool TcpLane::offer_pull(const Chunk& chunk) {
  std::vector<std::byte> frame;
  if (!pull_sender_ || !pull_sender_->offer(chunk, frame)) return false;
  writer_.queue_encoded(chunk, std::move(frame));
  return true;
}

void TcpLane::end_write(ChunkId chunk, bool acknowledged) {
  const auto at = writes_.find(chunk);
  if (at == writes_.end()) return;
  outstanding_ -= at->second.chunk.bytes;
  if (at->second.pulled) {
    if (acknowledged) {
      context_.counters.payload_bytes_sent += at->second.chunk.bytes;
      context_.counters.pulled_bytes_sent += at->second.chunk.bytes;
    }
    if (pull_sender_) pull_sender_->withdraw(chunk, acknowledged);
  }
  writes_.erase(at);
}

}  // namespace kvmend::transport::tcp
