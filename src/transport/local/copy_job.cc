#include "transport/local/copy_job.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/config.h"
#include "memory/guarded.h"
#include "transport/local/fast_copy.h"
#include "transport/local/small_pieces.h"

namespace kvmend::transport::local {
namespace {

constexpr std::size_t kMaxIov = 1024;
constexpr int kPausesBeforeYield = 2'000;

const memory::PoolSegment* find_pool(const memory::PoolSegments& pools, const std::byte* at,
                                     std::uint64_t length) {
  const auto found =
      std::ranges::find_if(pools, [&](const auto& pool) { return pool->holds(at, length); });
  return found == pools.end() ? nullptr : found->get();
}

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

CopyJob::CopyJob(PullRequest request, std::shared_ptr<const SourceMemory> source,
                 std::shared_ptr<const SegmentMap> segments,
                 std::shared_ptr<const memory::PoolSegments> own, LocalReceiver* owner)
    : receiver(owner),
      request_(std::move(request)),
      source_(std::move(source)),
      segments_(std::move(segments)),
      own_(std::move(own)) {
  parts_.reserve(request_.where.size());
  const MappedSegment* segment = nullptr;
  std::uint32_t segment_id = wire::PullSource::kForeignMemory;
  const memory::PoolSegment* pool = nullptr;
  for (std::size_t i = 0; i < request_.where.size(); ++i) {
    const iovec& where = request_.where[i];
    const wire::PullSource& from = request_.sources[i];
    Part part{static_cast<std::byte*>(where.iov_base), from.offset,
              static_cast<std::uint32_t>(where.iov_len), Way::kOtherSide};
    if (from.segment == wire::PullSource::kForeignMemory) {
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
      part.way = Way::kKernel;
      if (pool == nullptr || !pool->holds(part.to, part.length))
        pool = find_pool(*own_, part.to, part.length);
      if (pool != nullptr) {
        note_pool(*pool, part);
        part.to = pool->alias() + (part.to - pool->base());
        part.way = Way::kStores;
      }
    }
    parts_.push_back(part);
  }
  if (request_.has_checksum) sum_.emplace();
}

void CopyJob::note_pool(const memory::PoolSegment& pool, const Part& part) {
  if (pools_.empty() || pools_.back().pool != &pool)
    pools_.push_back({&pool, part.to, part.to + part.length});
  PoolRange& range = pools_.back();
  range.low = std::min(range.low, part.to);
  range.high = std::max(range.high, part.to + part.length);
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
    if (parts_[part].way == Way::kStores) {
      copy_by_stores(part, offset);
    } else {
      any_foreign |= parts_[part].way == Way::kOtherSide;
      outcome = copy_by_kernel(part, offset);
    }
    end_step(board, reader);
    if (outcome != Outcome::kCopied) return outcome;
  }
  // The bytes count only if they were the chunk's until now, and of the process that we meant.
  if (!source_->board->is_open(request_.chunk)) return Outcome::kWithdrawn;
  if (any_foreign && (!source_->process.alive() || !source_->link_open.load()))
    return Outcome::kGone;
  if (!pools_are_mapped()) return Outcome::kTargetFault;
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

void CopyJob::advance(std::size_t bytes, std::size_t& part, std::uint32_t& offset) const {
  while (bytes > 0) {
    const std::size_t n = std::min<std::size_t>(bytes, parts_[part].length - offset);
    bytes -= n;
    offset += static_cast<std::uint32_t>(n);
    if (offset == parts_[part].length) {
      ++part;
      offset = 0;
    }
  }
}

void CopyJob::copy_by_stores(std::size_t& part, std::uint32_t& offset) {
  std::size_t left = config::kPoolCopyStepBytes;
  while (part < parts_.size() && parts_[part].way == Way::kStores && left > 0) {
    const Part& piece = parts_[part];
    const std::size_t n = std::min<std::size_t>(left, piece.length - offset);
    const auto* from = reinterpret_cast<const std::byte*>(piece.from) + offset;  // NOLINT
    const bool more = part + 1 < parts_.size() && parts_[part + 1].way == Way::kStores;
    const auto* next =
        more ? reinterpret_cast<const std::byte*>(parts_[part + 1].from) : nullptr;  // NOLINT
    fast_copy(piece.to + offset, from, n, next);
    if (sum_) sum_->update({piece.to + offset, n});
    left -= n;
    advance(n, part, offset);
  }
}

CopyJob::Outcome CopyJob::copy_by_kernel(std::size_t& part, std::uint32_t& offset) {
  thread_local std::array<iovec, kMaxIov> to;
  thread_local std::array<iovec, kMaxIov> from;
  const Way way = parts_[part].way;
  const std::size_t step = step_bytes(parts_[part].length);
  std::size_t count = 0;
  std::size_t wanted = 0;
  for (std::size_t i = part;
       i < parts_.size() && parts_[i].way == way && count < kMaxIov && wanted < step;
       ++i, ++count) {
    const std::uint32_t skip = i == part ? offset : 0;
    const std::size_t n = std::min<std::size_t>(step - wanted, parts_[i].length - skip);
    to[count] = {parts_[i].to + skip, n};
    from[count] = {reinterpret_cast<void*>(parts_[i].from + skip), n};  // NOLINT: perhaps not ours
    wanted += n;
  }
  const std::span<iovec> into(to.data(), count);
  const std::span<const iovec> sources(from.data(), count);
  const bool foreign = way == Way::kOtherSide;
  if (are_small(sources, wanted, foreign) &&
      copy_small(foreign ? &source_->process : nullptr, into, sources, sum_)) {
    advance(wanted, part, offset);
    return Outcome::kCopied;
  }
  const ssize_t got = way == Way::kOtherSide ? source_->process.read(into, sources)
                                             : memory::guarded_copy(into, sources);
  if (got <= 0)
    return why_not_copied(way, got,
                          memory::is_mapped(to[0].iov_base, std::min(to[0].iov_len, 1UL)));
  // Short at a page that can't be accessed: the next step meets it first, and says so.
  if (sum_) {
    auto left = static_cast<std::size_t>(got);
    std::size_t used = 0;
    while (left > 0) {
      into[used].iov_len = std::min(into[used].iov_len, left);
      left -= into[used++].iov_len;
    }
    if (!memory::guarded_sum(into.first(used), *sum_)) return Outcome::kTargetFault;
  }
  advance(static_cast<std::size_t>(got), part, offset);
  return Outcome::kCopied;
}

CopyJob::Outcome CopyJob::why_not_copied(Way way, ssize_t got, bool target_is_mapped) const {
  const int error = static_cast<int>(-got);
  if (error == EPERM || error == ENOSYS) return Outcome::kDenied;
  if (way == Way::kKernel) return Outcome::kTargetFault;  // the source is a sealed mapping
  if (error == ESRCH || !source_->process.alive()) return Outcome::kGone;
  return target_is_mapped ? Outcome::kSourceFault : Outcome::kTargetFault;
}

// Stores to an alias don't fail when the owner has unmapped the pool; nobody would see the bytes.
bool CopyJob::pools_are_mapped() const {
  return std::ranges::all_of(pools_, [](const PoolRange& range) {
    return memory::is_mapped(range.low, static_cast<std::size_t>(range.high - range.low));
  });
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
  return std::ranges::any_of(request_.where, [&](const iovec& part) {
    const auto* to = static_cast<const std::byte*>(part.iov_base);
    return to < base + length && base < to + part.iov_len;
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
    case Outcome::kTargetFault:
      return {Code::kNotRegistered, Origin::kLocal, "destination memory isn't accessible"};
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
