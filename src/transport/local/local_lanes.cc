#include "transport/local/local_lanes.h"

#include <sys/uio.h>

#include <algorithm>

#include "memory/guarded.h"
#include "transport/local/local_hub.h"
#include "wire/frame.h"

namespace kvmend::transport::local {

// --------------------------------------------------------------------------------------- receiver

LocalReceiver::LocalReceiver(LocalHub& hub, std::shared_ptr<SourceLink> link, std::uint64_t lane,
                             PullSink& sink)
    : hub_(hub), link_(std::move(link)), lane_(lane), sink_(sink) {
  hub_.add(this);
}

LocalReceiver::~LocalReceiver() {
  hub_.remove(this);
}

void LocalReceiver::pull(PullRequest request) {
  const std::shared_ptr<const SourceMemory> memory = link_->memory();
  if (!memory) {
    sink_.on_pulled(request, {Code::kUnavailable, Origin::kLocal, "the link isn't open"});
    return;
  }
  ++waiting_;
  hub_.start(
      std::make_shared<CopyJob>(std::move(request), memory, link_->segments(), hub_.pools(), this));
}

void LocalReceiver::stop(ChunkId chunk) {
  waiting_ -= hub_.stop(this, chunk);
}

void LocalReceiver::answer(const CopyJob& job) {
  --waiting_;
  sink_.on_pulled(job.request(), job.status());
}

// ----------------------------------------------------------------------------------------- sender

LocalSender::LocalSender(LocalHub& hub, std::string address, std::uint64_t lane, PullSink& sink)
    : hub_(hub), address_(std::move(address)), lane_(lane), sink_(sink) {
  hub_.add(this);
}

LocalSender::~LocalSender() {
  std::vector<ChunkId> all(offered_.begin(), offered_.end());
  for (const auto& [chunk, loan] : lent_) all.push_back(chunk);
  close_and_wait(all);
  hub_.remove(this);
}

// Null as long as nothing can be offered.
const TargetLink* LocalSender::target() const {
  if (given_up_) return nullptr;
  const TargetLink* target = hub_.target_at(address_);
  return target != nullptr && target->usable() ? target : nullptr;
}

bool LocalSender::ready() const {
  return target() != nullptr;
}

// Where the receiver finds the bytes. False: it can't reach them.
bool LocalSender::locate(const TargetLink& target, const std::byte* at, std::uint64_t length,
                         std::size_t& hint, std::vector<wire::PullSource>& sources) {
  if (const SharedSegment* segment = target.find(at, length, hint)) {
    sources.push_back({segment->id, static_cast<std::uint64_t>(at - segment->base)});
    return true;
  }
  sources.push_back({wire::PullSource::kForeignMemory, reinterpret_cast<std::uintptr_t>(at)});
  return target.foreign();
}

bool LocalSender::offer(const Chunk& chunk, std::vector<std::byte>& frame) {
  const TargetLink* to = target();
  if (to == nullptr) return false;
  slices_.clear();
  sources_.clear();
  std::size_t hint = 0;
  bool reachable = true;
  bytes_.clear();
  chunk.for_each_slice(
      [&](std::byte* local, RegionRef region, std::uint64_t offset, std::uint32_t length) {
        slices_.push_back({region, offset, length});
        reachable &= locate(*to, local, length, hint, sources_);
        if (chunk.checksum) bytes_.push_back({local, length});
      });
  if (!reachable || slices_.size() > wire::kMaxSlicesPerPull) return false;
  std::uint64_t checksum = 0;
  if (chunk.checksum) {
    const auto sum = memory::guarded_checksum(bytes_);
    if (!sum) return false;  // the write meets the same fault, and says so
    checksum = *sum;
  }
  if (!hub_.board().open(chunk.id)) return false;
  offered_.insert(chunk.id);
  wire::append_pull_frame(frame, chunk.checksum ? wire::kFlagChecksum : std::uint8_t{0}, chunk.id,
                          {chunk.grant, checksum}, slices_, sources_);
  return true;
}

std::optional<ChunkId> LocalSender::lend(GrantId grant, std::span<const iovec> source,
                                         std::vector<wire::PullSource>& sources) {
  const TargetLink* to = target();
  if (to == nullptr || source.size() > wire::kMaxSlicesPerPull) return std::nullopt;
  sources.clear();
  std::size_t hint = 0;
  for (const iovec& part : source)
    if (!locate(*to, static_cast<const std::byte*>(part.iov_base), part.iov_len, hint, sources))
      return std::nullopt;
  const ChunkId loan = hub_.next_loan();
  if (!hub_.board().open(loan)) return std::nullopt;
  lent_.emplace(loan, Loan{grant, {source.begin(), source.end()}});
  return loan;
}

bool LocalSender::withdraw(ChunkId chunk, bool acknowledged) {
  if (offered_.erase(chunk) + lent_.erase(chunk) == 0) return true;
  hub_.board().close(chunk);
  if (acknowledged) return true;
  const TargetLink* target = hub_.target_at(address_);
  return target == nullptr || hub_.wait_for_reader(*target, chunk);
}

// All are closed first, so that the peer starts no further step while we wait.
void LocalSender::close_and_wait(const std::vector<ChunkId>& chunks) {
  for (const ChunkId chunk : chunks) hub_.board().close(chunk);
  if (const TargetLink* target = hub_.target_at(address_))
    for (const ChunkId chunk : chunks) static_cast<void>(hub_.wait_for_reader(*target, chunk));
}

void LocalSender::on_region_ending(const memory::Region& region) {
  const std::byte* end = region.base + region.length;
  std::vector<ChunkId> lent;
  for (const auto& [chunk, loan] : lent_)
    if (std::ranges::any_of(loan.source, [&](const iovec& part) {
          const auto* at = static_cast<const std::byte*>(part.iov_base);
          return at < end && region.base < at + part.iov_len;
        }))
      lent.push_back(chunk);
  close_and_wait(lent);
}

void LocalSender::on_grant_ending(GrantId grant) {
  std::vector<ChunkId> lent;
  for (const auto& [chunk, loan] : lent_)
    if (loan.grant == grant) lent.push_back(chunk);
  close_and_wait(lent);
}

bool LocalSender::put(Bytes frame) {
  TargetLink* target = hub_.target_at(address_);
  return target != nullptr && target->put(lane_, frame);
}

void LocalSender::give_up(const Status& why) {
  if (std::exchange(given_up_, true)) return;
  hub_.say_fallback("the receiver at @" + address_, why);
}

}  // namespace kvmend::transport::local
