#include "transport/local/copy_job.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/config.h"
#include "transport/local/fast_copy.h"

namespace kvmend::transport::local {
namespace {

constexpr std::size_t kMaxIov = 1024;
constexpr int kPausesBeforeYield = 2'000;

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

CopyJob::CopyJob(PullRequest request, std::shared_ptr<const SourceMemory> source,
                 std::shared_ptr<const SegmentMap> segments, LocalReceiver* owner)
    : receiver(owner),
      request_(std::move(request)),
      source_(std::move(source)),
      segments_(std::move(segments)) {
  parts_.reserve(request_.where.size());
  const MappedSegment* segment = nullptr;
  std::uint32_t segment_id = wire::PullSource::kForeignMemory;
  for (std::size_t i = 0; i < request_.where.size(); ++i) {
    const iovec& where = request_.where[i];
    const wire::PullSource& from = request_.sources[i];
    Part part{static_cast<std::byte*>(where.iov_base), from.offset,
              static_cast<std::uint32_t>(where.iov_len), false};
    if (from.segment == wire::PullSource::kForeignMemory) {
      part.foreign = true;
      unresolved_ |= !source_->foreign;
    } else {
      if (segment == nullptr || segment_id != from.segment) {
        const auto at = segments_->find(from.segment);
        segment = at == segments_->end() ? nullptr : at->second.get();
        segment_id = from.segment;
      }
      const std::byte* bytes = segment == nullptr ? nullptr : segment->at(from.offset, part.length);
      unresolved_ |= bytes == nullptr;
      part.from = reinterpret_cast<std::uintptr_t>(bytes);
    }
    parts_.push_back(part);
  }
  if (request_.has_checksum) sum_.emplace();
}

void CopyJob::run(const env::Clock& clock, Board& board, std::size_t reader) {
  outcome_ = unresolved_ ? Outcome::kDenied : copy_all(clock, board, reader);
}

CopyJob::Outcome CopyJob::copy_all(const env::Clock& clock, Board& board, std::size_t reader) {
  std::size_t part = 0;
  std::uint32_t offset = 0;
  bool any_foreign = false;
  while (part < parts_.size()) {
    Outcome outcome = Outcome::kCopied;
    if (!begin_step(clock, board, reader, outcome)) return outcome;
    if (parts_[part].foreign) {
      any_foreign = true;
      outcome = copy_foreign_step(part, offset);
    } else {
      copy_mapped_step(part, offset);
    }
    end_step(board, reader);
    if (outcome != Outcome::kCopied) return outcome;
  }
  // The bytes count only if they were the chunk's until now, and of the process that we meant.
  if (!source_->board->is_open(request_.chunk)) return Outcome::kWithdrawn;
  if (any_foreign && (!source_->process.alive() || !source_->link_open.load()))
    return Outcome::kGone;
  if (sum_ && sum_->value() != request_.checksum) return Outcome::kCorrupt;
  return Outcome::kCopied;
}

// Both marks are set before what they guard is looked at; see `stop` and board.h.
bool CopyJob::begin_step(const env::Clock& clock, Board& board, std::size_t reader, Outcome& why) {
  in_step_.store(true);
  board.mark(reader, request_.chunk);
  if (stopped_.load()) {
    why = Outcome::kStopped;
  } else if (!source_->board->is_open(request_.chunk)) {
    why = Outcome::kWithdrawn;
  } else if (request_.expires != kForever && clock.now() >= request_.expires) {
    why = Outcome::kExpired;
  } else {
    return true;
  }
  end_step(board, reader);
  return false;
}

void CopyJob::end_step(Board& board, std::size_t reader) {
  finish_copies();
  board.mark(reader, ChunkId());
  in_step_.store(false);
}

void CopyJob::add_to_checksum(const std::byte* at, std::size_t bytes) {
  if (sum_) sum_->update({at, bytes});
}

void CopyJob::copy_mapped_step(std::size_t& part, std::uint32_t& offset) {
  std::size_t left = config::kPoolCopyStepBytes;
  while (part < parts_.size() && !parts_[part].foreign && left > 0) {
    const Part& piece = parts_[part];
    const std::size_t n = std::min<std::size_t>(left, piece.length - offset);
    const auto* from = reinterpret_cast<const std::byte*>(piece.from) + offset;  // NOLINT
    fast_copy(piece.to + offset, from, n);
    add_to_checksum(piece.to + offset, n);
    left -= n;
    offset += static_cast<std::uint32_t>(n);
    if (offset == piece.length) {
      ++part;
      offset = 0;
    }
  }
}

CopyJob::Outcome CopyJob::copy_foreign_step(std::size_t& part, std::uint32_t& offset) {
  thread_local std::array<iovec, kMaxIov> to;
  thread_local std::array<iovec, kMaxIov> from;
  std::size_t count = 0;
  std::size_t wanted = 0;
  for (std::size_t i = part; i < parts_.size() && parts_[i].foreign && count < kMaxIov &&
                             wanted < config::kForeignCopyStepBytes;
       ++i, ++count) {
    const std::uint32_t skip = i == part ? offset : 0;
    const std::size_t n =
        std::min<std::size_t>(config::kForeignCopyStepBytes - wanted, parts_[i].length - skip);
    to[count] = {parts_[i].to + skip, n};
    from[count] = {reinterpret_cast<void*>(parts_[i].from + skip), n};  // NOLINT: not ours
    wanted += n;
  }
  const ssize_t got =
      source_->process.read(std::span(to).first(count), std::span(from).first(count));
  if (got <= 0) {
    switch (static_cast<int>(-got)) {
      case ESRCH:
        return Outcome::kGone;
      case EPERM:
      case ENOSYS:
        return Outcome::kDenied;
      default:
        return source_->process.alive() ? Outcome::kSourceFault : Outcome::kGone;
    }
  }
  // Short at a page that can't be read: the next step meets it first, and says so.
  auto rest = static_cast<std::size_t>(got);
  while (rest > 0) {
    const Part& piece = parts_[part];
    const std::size_t n = std::min<std::size_t>(rest, piece.length - offset);
    add_to_checksum(piece.to + offset, n);
    rest -= n;
    offset += static_cast<std::uint32_t>(n);
    if (offset == piece.length) {
      ++part;
      offset = 0;
    }
  }
  return Outcome::kCopied;
}

void CopyJob::stop() {
  stopped_.store(true);
  for (int i = 0; in_step_.load(); ++i) {
    if (i < kPausesBeforeYield) {
      pause_briefly();
    } else {
      ::sched_yield();  // on a core less: the copy thread needs this one
    }
  }
}

bool CopyJob::writes_into(const std::byte* base, std::uint64_t length) const {
  return std::ranges::any_of(parts_, [&](const Part& part) {
    return part.to < base + length && base < part.to + part.length;
  });
}

Status CopyJob::status() const {
  switch (outcome_) {
    case Outcome::kCopied:
      return Status::ok();
    case Outcome::kStopped:
    case Outcome::kExpired:
      return {Code::kPermissionDenied, Origin::kCaller, "the grant ended"};
    case Outcome::kWithdrawn:
      return {Code::kCancelled, Origin::kCaller, "the sender withdrew the chunk"};
    case Outcome::kSourceFault:
      return {Code::kNotRegistered, Origin::kCaller, "source memory isn't accessible"};
    case Outcome::kDenied:
      return {Code::kUnavailable, Origin::kLocal, "the sender's memory can't be read from here"};
    case Outcome::kGone:
      return {Code::kUnavailable, Origin::kLocal, "the sending process has gone"};
    case Outcome::kCorrupt:
      return {Code::kChecksumMismatch, Origin::kLink, "checksum"};
  }
  return {Code::kInternal, Origin::kLocal, "unknown outcome"};
}

}  // namespace kvmend::transport::local
