// The part of a lane that moves bytes the other way: answering reads, and our own.
#include <fmt/format.h>

#include <algorithm>

#include "base/config.h"
#include "memory/guarded.h"
#include "transport/tcp/answers.h"
#include "transport/tcp/tcp_lane.h"

namespace kvmend::transport::tcp {

using wire::FrameType;

// ----------------------------------------------------------------------------------- answering

// The slices of all lanes together are bounded; but a lane may always have one request, so that
// none waits for another's.
bool TcpLane::may_queue_read() const {
  return jobs_.empty() || (jobs_.size() < config::kMaxQueuedReads &&
                           context_.counters.queued_read_slices < config::kMaxQueuedReadSlices);
}

Status TcpLane::on_read_request(const wire::FrameHeader& header, Bytes body) {
  ReadJob job;
  auto data = wire::parse_data_body(header, body, job.slices);
  if (!data) return data.error();
  job.chunk = ChunkId(header.id);
  job.grant = data->grant;
  job.checksum = (header.flags & wire::kFlagChecksum) != 0;
  for (const wire::WireSlice& slice : job.slices) job.bytes += slice.length;
  queued_slices_ += job.slices.size();
  context_.counters.queued_read_slices += job.slices.size();
  if ((header.flags & wire::kFlagPull) == 0 || !lend(job)) queue_reply_job(std::move(job));
  update_reading();
  return Status::ok();
}

void TcpLane::queue_reply_job(ReadJob job) {
  jobs_.push_back(std::move(job));
  if (!answering_) start_next_reply();
}

void TcpLane::forget_slices(const ReadJob& job) {
  const std::size_t slices = std::min(queued_slices_, job.slices.size());  // 0 once closed
  queued_slices_ -= slices;
  context_.counters.queued_read_slices -= slices;
}

// Asks the grant where a read's bytes lie now, and sums them up if that is wanted.
Status TcpLane::locate(ReadJob& job, std::uint32_t* argument, Source& source) {
  job.removals = context_.regions.removals();
  Status status =
      resolve(job.grant, Access::kRemoteRead, job.slices, argument, source.parts, job.scratch);
  if (!status.is_ok() || !job.checksum) return status;
  const auto sum = memory::guarded_checksum(source.parts);
  if (!sum) return source_fault();
  source.checksum = *sum;
  return status;
}

// The last frame of a read, whichever way its bytes went.
std::vector<std::byte> TcpLane::read_end(const ReadJob& job) {
  std::vector<std::byte> end;
  wire::append_acks(end, FrameType::kReadEnd, job.chunk.value, std::span(&job.result, 1));
  forget_slices(job);
  return end;
}

void TcpLane::end_reply() {
  writer_.queue_urgent(read_end(jobs_.front()));
  jobs_.pop_front();
}

// The grant is asked when a job's turn comes, not when it was queued: before any byte is read.
void TcpLane::start_next_reply() {
  answering_ = false;
  while (!jobs_.empty() && !answering_) {
    ReadJob& job = jobs_.front();
    Source source;
    std::uint32_t argument = 0;
    const Status status = locate(job, &argument, source);
    job.result = to_entry(job.chunk, status, argument);
    if (!status.is_ok()) {
      ++context_.counters.frames_refused;
      end_reply();
      continue;
    }
    answering_ = true;
    writer_.queue_reply(job.chunk, std::move(source.parts), job.bytes, source.checksum,
                        job.checksum);
  }
}

// Whether the source still is what the peer may read.
Status TcpLane::confirm(ReadJob& job, std::uint32_t* argument) {
  if (context_.grants.still_allowed(job.grant, context_.loop.now(), job.removals))
    return Status::ok();
  // Another region may have gone: ask again in full before giving up.
  std::vector<iovec> source;
  Status status =
      resolve(job.grant, Access::kRemoteRead, job.slices, argument, source, job.scratch);
  if (status.is_ok()) job.removals = context_.regions.removals();
  return status;
}

void TcpLane::check_reply_grant() {
  if (!answering_) return;
  ReadJob& job = jobs_.front();
  if (job.zeroed || job.scratch) return;
  std::uint32_t argument = 0;
  const Status status = confirm(job, &argument);
  if (status.is_ok()) return;
  // The pages may belong to somebody else by now: what hasn't left is sent as zeros, and the read
  // is answered with an error.
  writer_.zero_reply(job.chunk);
  job.zeroed = true;
  job.result = to_entry(job.chunk, status, argument);
  ++context_.counters.frames_refused;
}

void TcpLane::finish_reply(ChunkId chunk) {
  if (!answering_ || jobs_.front().chunk != chunk) return;
  check_reply_grant();  // the lease is confirmed after the last byte has left
  end_reply();
  start_next_reply();
  if (!want_write_) stream_->want_write(want_write_ = true);
}

// ------------------------------------------------------------------------------------ our own

Status TcpLane::on_read_data(const wire::FrameHeader& header, Bytes body,
                             std::vector<iovec>& into) {
  incoming_ = {};
  incoming_.header = header;
  incoming_.reading = true;
  last_read_copied_ = false;
  if ((header.flags & wire::kFlagChecksum) != 0) {
    if (body.size() != wire::kDataBodyBytes)
      return protocol_error("a checksummed answer without its checksum");
    incoming_.checksum = load_le<std::uint64_t>(body.data() + 8);
    start_checksum();
  }
  const auto at = reads_.find(ChunkId(header.id));
  if (at == reads_.end()) {
    incoming_.detached = true;
    incoming_.result.code = Code::kCancelled;
    return Status::ok();
  }
  PendingRead& read = at->second;
  if (!read.sent) return early_answer(read.chunk.id);
  if (read.loan.is_set()) return protocol_error("an answer to a read that is being copied");
  if (read.chunk.checksum && (header.flags & wire::kFlagChecksum) == 0)
    return protocol_error("an answer without the checksum that was asked for");
  if (read.received != 0 || header.payload_bytes != read.chunk.bytes)
    return protocol_error(fmt::format("an answer of {} bytes to a read of {}", header.payload_bytes,
                                      read.chunk.bytes));
  read.chunk.for_each_slice([&](std::byte* local, RegionRef, std::uint64_t, std::uint32_t length) {
    into.push_back({local, length});
  });
  return Status::ok();
}

Status TcpLane::on_read_end(const wire::FrameHeader& header, Bytes body) {
  Status status = wire::parse_acks(header, body, received_);
  if (!status.is_ok()) return status;
  const ChunkId chunk(header.id);
  if (const auto at = reads_.find(chunk); at != reads_.end() && !at->second.sent)
    return early_answer(chunk);
  note_answer();
  finish_read(chunk, received_.front());
  return Status::ok();
}

void TcpLane::finish_read(ChunkId chunk, wire::AckEntry result) {
  const auto at = reads_.find(chunk);
  if (at == reads_.end()) return;
  const PendingRead& read = at->second;
  end_loan_of(read);
  result.chunk = chunk;
  if (result.code == Code::kOk && read.faulted)
    result =
        to_entry(chunk, {Code::kNotRegistered, Origin::kCaller, "destination isn't accessible"});
  if (result.code == Code::kOk && read.corrupt)
    result = to_entry(chunk, {Code::kChecksumMismatch, Origin::kLink, "checksum"});
  if (result.code == Code::kOk && read.received != read.chunk.bytes)
    result = to_entry(chunk, protocol_error("the answer is short"));
  outstanding_ -= read.chunk.bytes;
  reads_.erase(at);
  observer_->on_chunk_done(*this, result);
}

}  // namespace kvmend::transport::tcp
