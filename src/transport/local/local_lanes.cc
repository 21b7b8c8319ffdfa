#include "transport/local/local_lanes.h"

#include <sys/uio.h>

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
  // All are closed first, so that the peer starts no further step while we wait.
  for (const ChunkId chunk : offered_) hub_.board().close(chunk);
  if (const TargetLink* target = hub_.target_at(address_))
    for (const ChunkId chunk : offered_) static_cast<void>(hub_.wait_for_reader(*target, chunk));
  hub_.remove(this);
}

bool LocalSender::ready() const {
  if (given_up_) return false;
  const TargetLink* target = hub_.target_at(address_);
  return target != nullptr && target->usable();
}

bool LocalSender::offer(const Chunk& chunk, std::vector<std::byte>& frame) {
  if (given_up_) return false;
  const TargetLink* target = hub_.target_at(address_);
  if (target == nullptr || !target->usable()) return false;
  slices_.clear();
  sources_.clear();
  std::size_t hint = 0;
  bool reachable = true;
  bytes_.clear();
  chunk.for_each_slice(
      [&](std::byte* local, RegionRef region, std::uint64_t offset, std::uint32_t length) {
        slices_.push_back({region, offset, length});
        if (const SharedSegment* segment = target->find(local, length, hint)) {
          sources_.push_back({segment->id, static_cast<std::uint64_t>(local - segment->base)});
        } else {
          reachable &= target->foreign();
          sources_.push_back(
              {wire::PullSource::kForeignMemory, reinterpret_cast<std::uintptr_t>(local)});
        }
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

bool LocalSender::withdraw(ChunkId chunk, bool acknowledged) {
  if (offered_.erase(chunk) == 0) return true;
  hub_.board().close(chunk);
  if (acknowledged) return true;
  const TargetLink* target = hub_.target_at(address_);
  return target == nullptr || hub_.wait_for_reader(*target, chunk);
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
