#include "transport/tcp/lane_writer.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/check.h"
#include "base/sabotage.h"
#include "env/errors.h"
#include "memory/grant_table.h"
#include "memory/guarded.h"
#include "transport/stretches.h"
#include "wire/frame.h"

namespace kvmend::transport::tcp {
namespace {

constexpr std::size_t kIovEntries = 1024;
constexpr std::size_t kMinCallBytes = 1U << 20;  // aim of one system call

// Source of zeros for frames that lost their memory. Never written; takes no memory until read.
std::byte g_zeros[wire::kMaxPayloadBytes];

// The last staged frame's buffer, for the next one of any lane of this loop.
std::vector<std::byte>& spare_buffer() {
  thread_local std::vector<std::byte> spare;
  return spare;
}

wire::FrameType type_of(Opcode opcode) {
  return opcode == Opcode::kWrite ? wire::FrameType::kWrite : wire::FrameType::kRead;
}

}  // namespace

void LaneWriter::queue_urgent(std::vector<std::byte> frames) {
  urgent_bytes_ += frames.size();
  if (urgent_.empty()) {
    urgent_ = std::move(frames);
  } else {
    urgent_.insert(urgent_.end(), frames.begin(), frames.end());
  }
}

void LaneWriter::queue_chunk(const Chunk& chunk) {
  Frame frame;
  frame.chunk = chunk.id;
  frame.plan = chunk;
  insert(std::move(frame));
}

void LaneWriter::queue_encoded(const Chunk& chunk, std::vector<std::byte> frame_bytes) {
  Frame frame;
  frame.chunk = chunk.id;
  frame.plan = chunk;
  frame.built = true;
  frame.head = std::move(frame_bytes);
  insert(std::move(frame));
}

void LaneWriter::insert(Frame frame) {
  if (!frame.plan.urgent) {
    frames_.push_back(std::move(frame));
    return;
  }
  // Behind what has been started and behind earlier urgent ones, before all bulk.
  auto at = frames_.begin();
  while (at != frames_.end() && (at->started || !at->chunk.is_set() || at->plan.urgent)) ++at;
  frames_.insert(at, std::move(frame));
}

void LaneWriter::queue_reply(ChunkId chunk, std::vector<iovec> source, std::uint32_t bytes,
                             std::uint64_t checksum, bool has_checksum) {
  Frame frame;
  frame.chunk = chunk;
  frame.reply = true;
  frame.built = true;
  frame.payload = std::move(source);
  if (has_checksum) {
    wire::append_data_frame(frame.head, wire::FrameType::kReadData, wire::kFlagChecksum, chunk,
                            {GrantId{}, checksum}, {}, bytes);
  } else {
    wire::append_frame(frame.head, wire::FrameType::kReadData, chunk.value, {}, bytes);
  }
  frames_.push_back(std::move(frame));
}

// False: its memory can't be read.
bool LaneWriter::build(Frame& frame) {
  const Chunk& chunk = frame.plan;
  thread_local std::vector<wire::WireSlice> slices;
  slices.clear();
  chunk.for_each_slice(
      [&](std::byte* local, RegionRef region, std::uint64_t offset, std::uint32_t length) {
        slices.push_back({region, offset, length});
        if (chunk.opcode == Opcode::kWrite) frame.payload.push_back({local, length});
      });
  join_parts(frame.payload);
  // Memory of raw users goes straight from its place: docs/decisions/0020-staging-in-the-lane.md.
  const bool room = chunk.opcode == Opcode::kWrite && chunk.grant != memory::kStandingGrant;
  if (room && is_worth_staging(chunk.bytes, frame.payload.size(), stage_below_) &&
      is_worth_gathering(frame.payload) && !stage(frame))
    return false;
  wire::DataBody body{chunk.grant, 0};
  if (chunk.checksum && chunk.opcode == Opcode::kWrite) {
    const auto sum = memory::guarded_checksum(frame.payload);
    if (!sum) return false;
    body.checksum = *sum;
  }
  wire::append_data_frame(frame.head, type_of(chunk.opcode),
                          chunk.checksum ? wire::kFlagChecksum : std::uint8_t{0}, chunk.id, body,
                          slices, chunk.opcode == Opcode::kWrite ? chunk.bytes : 0);
  frame.built = true;
  return true;
}

bool LaneWriter::stage(Frame& frame) {
  frame.staged = std::exchange(spare_buffer(), {});
  if (frame.staged.size() < frame.plan.bytes) frame.staged.resize(frame.plan.bytes);
  if (!copier_.gather(frame.payload, frame.staged.data())) {
    spare_buffer() = std::move(frame.staged);
    return false;
  }
  frame.payload.assign(1, {frame.staged.data(), frame.plan.bytes});
  return true;
}

void LaneWriter::zero_fill(Frame& frame) {
  for (std::size_t i = frame.place; i < frame.payload.size(); ++i)
    frame.payload[i].iov_base = g_zeros;
}

bool LaneWriter::detach(ChunkId chunk) {
  const auto at =
      std::ranges::find_if(frames_, [&](const Frame& f) { return f.chunk == chunk && !f.reply; });
  if (at == frames_.end() || KVM_SABOTAGE(source_read_after_cancel)) return false;
  if (!at->started) {
    frames_.erase(at);
    return true;
  }
  zero_fill(*at);
  return false;
}

bool LaneWriter::zero_reply(ChunkId chunk) {
  const auto at =
      std::ranges::find_if(frames_, [&](const Frame& f) { return f.chunk == chunk && f.reply; });
  if (at == frames_.end()) return false;
  zero_fill(*at);
  return true;
}

std::vector<ChunkId> LaneWriter::unsent() const {
  std::vector<ChunkId> out;
  for (const Frame& frame : frames_)
    if (frame.chunk.is_set() && !frame.reply && !frame.started) out.push_back(frame.chunk);
  return out;
}

void LaneWriter::merge_urgent() {
  if (urgent_.empty()) return;
  Frame frame;
  frame.built = true;
  frame.head = std::move(urgent_);
  urgent_.clear();
  auto at = frames_.begin();
  while (at != frames_.end() && (at->started || !at->chunk.is_set())) ++at;
  frames_.insert(at, std::move(frame));
}

std::size_t LaneWriter::gather(std::size_t budget, std::size_t max_frames, Outcome& outcome) {
  iov_.clear();
  gathered_ = 0;
  std::size_t bytes = 0;
  const std::size_t aim = std::min(budget, kMinCallBytes);
  while (gathered_ < frames_.size() && gathered_ < max_frames) {
    Frame& frame = frames_[gathered_];
    if (!frame.built) {
      if (bytes > 0 && iov_.size() + 2 + frame.plan.pieces.size() > kIovEntries) break;
      if (!build(frame)) {
        outcome.faulted.emplace_back(frame.chunk, true);
        frames_.erase(frames_.begin() + static_cast<std::ptrdiff_t>(gathered_));
        continue;
      }
    }
    ++gathered_;
    if (frame.head_sent < frame.head.size()) {
      iov_.push_back({frame.head.data() + frame.head_sent, frame.head.size() - frame.head_sent});
      bytes += iov_.back().iov_len;
    }
    for (std::size_t i = frame.place; i < frame.payload.size() && iov_.size() < kIovEntries; ++i) {
      iov_.push_back(frame.payload[i]);
      bytes += frame.payload[i].iov_len;
    }
    if (bytes >= aim || iov_.size() >= kIovEntries) break;
  }
  return bytes;
}

void LaneWriter::retire_front(Outcome& outcome) {
  Frame& frame = frames_.front();
  if (!frame.staged.empty()) spare_buffer() = std::move(frame.staged);
  if (!frame.chunk.is_set()) urgent_bytes_ -= frame.head.size();
  if (frame.reply) outcome.replies.push_back(frame.chunk);
  if (frame.chunk.is_set() && !frame.reply) outcome.sent.push_back(frame.chunk);
  frames_.pop_front();
}

void LaneWriter::consume(std::size_t bytes, Outcome& outcome) {
  outcome.bytes += bytes;
  while (bytes > 0) {
    KVM_CHECK(!frames_.empty(), "more was sent than was queued");
    Frame& frame = frames_.front();
    frame.started = true;
    const std::size_t head = std::min(bytes, frame.head.size() - frame.head_sent);
    frame.head_sent += head;
    bytes -= head;
    while (bytes > 0 && frame.place < frame.payload.size()) {
      iovec& part = frame.payload[frame.place];
      const std::size_t n = std::min(bytes, part.iov_len);
      part.iov_len -= n;
      if (part.iov_base != g_zeros) part.iov_base = static_cast<std::byte*>(part.iov_base) + n;
      if (part.iov_len == 0) ++frame.place;
      bytes -= n;
      outcome.payload_bytes += n;
    }
    if (!frame.done()) return;
    retire_front(outcome);
  }
}

LaneWriter::Outcome LaneWriter::flush(env::Stream& stream, std::size_t budget) {
  Outcome outcome;
  std::size_t max_frames = SIZE_MAX;
  while (outcome.bytes < budget) {
    merge_urgent();
    if (frames_.empty()) return outcome;
    const std::size_t wanted = gather(budget - outcome.bytes, max_frames, outcome);
    max_frames = SIZE_MAX;
    if (gathered_ == 0) continue;  // all of them faulted
    const env::IoResult io = stream.writev(iov_);
    switch (io.kind) {
      case env::IoResult::Kind::kOk:
        consume(io.bytes, outcome);
        if (io.bytes < wanted) {
          outcome.blocked = true;
          return outcome;
        }
        break;
      case env::IoResult::Kind::kAgain:
        outcome.blocked = true;
        return outcome;
      case env::IoResult::Kind::kFault: {
        // Any of the frames may be at fault: the kernel takes nothing of a packet that it can't
        // fill. Sent alone, the front one shows whether it is.
        if (gathered_ > 1) {
          max_frames = 1;
          break;
        }
        Frame& frame = frames_.front();
        KVM_CHECK(frame.built && !frame.payload.empty(), "fault outside of a payload");
        zero_fill(frame);
        outcome.faulted.emplace_back(frame.chunk, false);
        break;
      }
      case env::IoResult::Kind::kEof:
      case env::IoResult::Kind::kError:
        outcome.error =
            env::status_of_errno(io.kind == env::IoResult::Kind::kEof ? EPIPE : io.sys_errno,
                                 "connection to " + stream.peer().to_string() + " broke");
        return outcome;
    }
  }
  outcome.budget_used = true;
  return outcome;
}

}  // namespace kvmend::transport::tcp
