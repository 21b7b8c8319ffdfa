#include "memory/remote_regions.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/config.h"

namespace kvmend::memory {
namespace {

std::uint32_t slot_of(const wire::RegionEntry& entry) {
  return entry.ref.slot;
}

bool contains(const wire::RegionEntry& entry, std::uint64_t address) {
  return address >= entry.base && address - entry.base < entry.length;
}

}  // namespace

RemoteRegions::RemoteRegions(std::uint64_t version, std::vector<wire::RegionEntry> regions)
    : version_(version), regions_(std::move(regions)) {}

Result<RemoteRegions::Place> RemoteRegions::translate(std::uint64_t address,
                                                      std::uint64_t length) const {
  auto place = translate_head(address, length);
  if (place && place->length < length)
    return fail(Code::kOutOfRange, Origin::kCaller,
                fmt::format("{:#x} (+{}) exceeds the peer's region {:#x} (+{})", address, length,
                            address - place->offset, place->offset + place->length));
  return place;
}

Result<RemoteRegions::Place> RemoteRegions::translate_head(std::uint64_t address,
                                                           std::uint64_t length) const {
  if (length == 0)
    return fail(Code::kInvalidArgument, Origin::kCaller, fmt::format("no bytes at {:#x}", address));
  std::size_t at = hint_.load(std::memory_order_relaxed);
  if (at >= regions_.size() || !contains(regions_[at], address)) {
    if (at + 1 < regions_.size() && contains(regions_[at + 1], address)) {
      ++at;
    } else {
      const auto after = std::ranges::upper_bound(regions_, address, {}, &wire::RegionEntry::base);
      if (after == regions_.begin() || !contains(*std::prev(after), address))
        return fail(Code::kNotRegistered, Origin::kCaller,
                    fmt::format("the peer has no region at {:#x} (+{})", address, length));
      at = static_cast<std::size_t>(after - regions_.begin()) - 1;
    }
    hint_.store(static_cast<std::uint32_t>(at), std::memory_order_relaxed);
  }
  const wire::RegionEntry& entry = regions_[at];
  const std::uint64_t offset = address - entry.base;
  return Place{.region = entry.ref,
               .offset = offset,
               .length = std::min(length, entry.length - offset),
               .access = entry.access};
}

std::shared_ptr<const RemoteRegions> RemoteRegionsBuilder::refuse(std::string detail) {
  reset();
  error_ = Status(Code::kProtocolError, Origin::kPeer, std::move(detail));
  return nullptr;
}

void RemoteRegionsBuilder::reset() {
  *this = RemoteRegionsBuilder();
}

std::shared_ptr<const RemoteRegions> RemoteRegionsBuilder::apply(
    const wire::RegionTablePart& part) {
  error_ = Status::ok();
  if (part.first) {
    next_.clear();
    version_ = part.version;
    building_ = true;
  } else if (!building_ || part.version != version_) {
    return refuse(fmt::format("a part of version {} of the region table without its beginning",
                              part.version));
  }
  if (part.added.size() > config::kMaxRegions - next_.size())
    return refuse("the peer's region table is too large");
  for (const wire::RegionEntry& entry : part.added)
    if (entry.ref.generation == 0 || entry.length == 0 || entry.base + entry.length < entry.base)
      return refuse(fmt::format("region {:#x} (+{})", entry.base, entry.length));
  next_.insert(next_.end(), part.added.begin(), part.added.end());
  if (part.more) return nullptr;

  building_ = false;
  std::vector<wire::RegionEntry> regions = std::exchange(next_, {});
  std::ranges::sort(regions, {}, slot_of);
  if (std::ranges::adjacent_find(regions, {}, slot_of) != regions.end())
    return refuse("a slot twice in the peer's region table");
  std::ranges::sort(regions, {}, &wire::RegionEntry::base);
  const auto clash = std::ranges::adjacent_find(
      regions, [](const auto& a, const auto& b) { return b.base - a.base < a.length; });
  if (clash != regions.end())
    return refuse(fmt::format("the peer's regions at {:#x} and {:#x} overlap", clash->base,
                              std::next(clash)->base));
  return std::make_shared<const RemoteRegions>(version_, std::move(regions));
}

}  // namespace kvmend::memory
