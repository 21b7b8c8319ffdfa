// Reads on the same host: the initiator copies from memory that the acceptor lends it.
//
//   initiator                        acceptor
//     read (with the pull flag) ->     checks the grant, opens the memory (a loan)
//                               <-   read offer: where it lies
//     copies                    ->   read taken: how that went
//                               <-   read end: the grant held until after the last byte
//
// A loan that can't be copied is answered by the stream instead.
#include <algorithm>
#include <utility>

#include "base/config.h"
#include "transport/tcp/answers.h"
#include "transport/tcp/tcp_lane.h"

namespace kvmend::transport::tcp {

using wire::FrameType;

// Frames of a few hundred bytes, on which the other side waits.
template <class Way>
void TcpLane::send_small(const std::unique_ptr<Way>& way, std::vector<std::byte> frame) {
  if (way && way->put(frame)) {
    context_.loop.expect_more();
    return;
  }
  writer_.queue_urgent(std::move(frame));
  flush_soon();
}

// ---------------------------------------------------------------------------------- the initiator

bool TcpLane::ask_for_loan(PendingRead& read) {
  if (!peer_host_ || context_.pulls == nullptr) return false;
  if (!read_receiver_) {
    read_receiver_ = context_.pulls->receive_from(*peer_host_, reads_of(name_), *this);
    if (!read_receiver_) peer_host_.reset();  // it has been said why
  }
  if (!read_receiver_ || !read_receiver_->ready()) return false;
  slices_.clear();
  read.chunk.for_each_slice(
      [&](std::byte*, RegionRef region, std::uint64_t offset, std::uint32_t length) {
        slices_.push_back({region, offset, length});
      });
  if (slices_.size() > wire::kMaxSlicesPerPull) return false;
  std::vector<std::byte> frame;
  wire::append_data_frame(
      frame, FrameType::kRead,
      static_cast<std::uint8_t>(wire::kFlagPull | (read.chunk.checksum ? wire::kFlagChecksum : 0)),
      read.chunk.id, {.grant = read.chunk.grant}, slices_, 0);
  if (outstanding_ <= config::kSmallTurnBytes && reads_.size() < config::kMaxQueuedReads &&
      read_receiver_->put(frame)) {
    read.sent = true;
    note_put();
  } else {
    writer_.queue_encoded(read.chunk, std::move(frame));
  }
  return true;
}

Status TcpLane::on_read_offer(const wire::FrameHeader& header, Bytes body) {
  PullRequest request;
  const auto offer = wire::parse_read_offer(header, body, request.sources);
  if (!offer) return offer.error();
  const auto at = reads_.find(ChunkId(header.id));
  if (at == reads_.end()) {
    send_taken(offer->loan, {Code::kCancelled, Origin::kCaller, "the read is over"});
    return Status::ok();
  }
  PendingRead& read = at->second;
  if (!read.sent) return early_answer(read.chunk.id);
  if (!read.asked || read.loan.is_set() || pulling_.contains(offer->loan))
    return protocol_error("an offer that nobody asked for");
  request.chunk = offer->loan;
  request.has_checksum = (header.flags & wire::kFlagChecksum) != 0;
  request.checksum = offer->checksum;
  request.bytes = read.chunk.bytes;
  if (request.has_checksum != read.chunk.checksum)
    return protocol_error("an offer with the checksum flag of another read");
  read.chunk.for_each_slice([&](std::byte* local, RegionRef, std::uint64_t, std::uint32_t length) {
    request.where.push_back({local, length});
  });
  if (request.where.size() != request.sources.size())
    return protocol_error("an offer of other slices than were asked for");
  read.loan = offer->loan;
  pulling_.emplace(offer->loan, read.chunk.id);
  read_receiver_->pull(std::move(request));
  return Status::ok();
}

void TcpLane::on_read_pulled(const PullRequest& request, const Status& result) {
  const auto pulling = pulling_.find(request.chunk);
  if (pulling == pulling_.end()) return;
  const auto at = reads_.find(pulling->second);
  pulling_.erase(pulling);
  if (at == reads_.end()) return;
  PendingRead& read = at->second;
  last_read_copied_ = result.is_ok();
  if (result.is_ok()) {
    read.received = request.bytes;
    context_.counters.payload_bytes_received += request.bytes;
    context_.counters.pulled_bytes_received += request.bytes;
  } else if (result.code() == Code::kUnavailable) {
    read.loan = ChunkId();
    read.asked = false;  // the bytes come by the stream
    peer_host_.reset();  // later ones, too
  } else if (result.code() == Code::kChecksumMismatch) {
    read.received = request.bytes;
    read.corrupt = true;
  } else if (result.code() == Code::kNotRegistered && result.origin() == Origin::kLocal) {
    read.received = request.bytes;
    read.faulted = true;
  }
  send_taken(request.chunk, result);
}

void TcpLane::send_taken(ChunkId loan, const Status& result) {
  const wire::AckEntry entry = to_entry(loan, result);
  std::vector<std::byte> frame;
  wire::append_acks(frame, FrameType::kReadTaken, loan.value, std::span(&entry, 1));
  send_small(read_receiver_, std::move(frame));
}

// Nothing is written for the read any more.
void TcpLane::end_loan_of(const PendingRead& read) {
  if (!read.loan.is_set() || pulling_.erase(read.loan) == 0) return;
  read_receiver_->stop(read.loan);
  send_taken(read.loan, {Code::kCancelled, Origin::kCaller, "the read is over"});
}

// ----------------------------------------------------------------------------------- the acceptor

// False: the bytes go by the stream.
bool TcpLane::lend(ReadJob& job) {
  if (!read_sender_ || !read_sender_->ready() || lent_.size() >= config::kMaxLoans ||
      context_.counters.queued_read_slices >= config::kMaxQueuedReadSlices)
    return false;
  Source source;
  std::uint32_t argument = 0;
  if (!locate(job, &argument, source).is_ok() || job.scratch) return false;  // refused there, too
  const auto loan = read_sender_->lend(job.grant, source.parts, sources_);
  if (!loan) return false;
  std::vector<std::byte> frame;
  wire::append_read_offer(frame, job.checksum ? wire::kFlagChecksum : std::uint8_t{0}, job.chunk,
                          {.loan = *loan, .checksum = source.checksum}, sources_);
  lent_.emplace(*loan, std::move(job));
  send_small(read_sender_, std::move(frame));
  return true;
}

Status TcpLane::on_read_taken(const wire::FrameHeader& header, Bytes body) {
  Status status = wire::parse_acks(header, body, received_);
  if (!status.is_ok()) return status;
  const wire::AckEntry taken = received_.front();
  const auto at = lent_.find(taken.chunk);
  if (at == lent_.end()) return protocol_error("the end of a loan that wasn't made");
  ReadJob job = std::move(at->second);
  lent_.erase(at);
  read_sender_->withdraw(taken.chunk, true);
  if (taken.code == Code::kUnavailable) {
    read_sender_->give_up({taken.code, taken.origin, "copying a read failed"});
    queue_reply_job(std::move(job));
    update_reading();
    return Status::ok();
  }
  std::uint32_t argument = 0;
  status = confirm(job, &argument);
  if (status.is_ok() && taken.code == Code::kNotRegistered && taken.origin == Origin::kCaller)
    status = source_fault();
  if (status.is_ok() && taken.code == Code::kCancelled)
    status = {taken.code, taken.origin, "the reader ended the read"};
  if (!status.is_ok()) {
    ++context_.counters.frames_refused;
  } else if (taken.code == Code::kOk) {
    context_.counters.payload_bytes_sent += job.bytes;
    context_.counters.pulled_bytes_sent += job.bytes;
  }
  job.result = to_entry(job.chunk, status, argument);
  send_small(read_sender_, read_end(job));
  update_reading();
  return Status::ok();
}

}  // namespace kvmend::transport::tcp
