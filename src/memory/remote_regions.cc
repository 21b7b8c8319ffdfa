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

std::shared_ptr<const RemoteRegions> RemoteRegionsBuilder::refuse(Code code, std::string detail) {
  building_ = false;
  next_.clear();
  error_ = Status(code, Origin::kPeer, std::move(detail));
  return nullptr;
}

void RemoteRegionsBuilder::reset() {
  *this = RemoteRegionsBuilder();
}

std::shared_ptr<const RemoteRegions> RemoteRegionsBuilder::apply(
    const wire::RegionTablePart& part) {
  error_ = Status::ok();
  const bool continues = building_ && !part.full && part.version == version_;
  if (!continues) {
    next_.clear();
    if (!part.full) {
      if (known_ == nullptr || part.base_version != known_->version())
        return refuse(Code::kUnavailable,
                      fmt::format("a change to version {} of the region table, which isn't here",
                                  part.base_version));
      next_.assign(known_->list().begin(), known_->list().end());
      std::ranges::sort(next_, {}, slot_of);
    }
    version_ = part.version;
    building_ = true;
  }

  std::vector<std::uint32_t> gone(part.removed);
  std::ranges::sort(gone);
  std::erase_if(next_, [&](const wire::RegionEntry& entry) {
    return std::ranges::binary_search(gone, slot_of(entry));
  });
  if (part.added.size() > config::kMaxRegions - next_.size())
    return refuse(Code::kProtocolError, "the peer's region table is too large");
  for (const wire::RegionEntry& entry : part.added)
    if (entry.ref.generation == 0 || entry.length == 0 || entry.base + entry.length < entry.base)
      return refuse(Code::kProtocolError,
                    fmt::format("region {:#x} (+{})", entry.base, entry.length));
  next_.insert(next_.end(), part.added.begin(), part.added.end());
  std::ranges::sort(next_, {}, slot_of);
  if (std::ranges::adjacent_find(next_, {}, slot_of) != next_.end())
    return refuse(Code::kProtocolError, "a slot twice in the peer's region table");
  if (part.more) return nullptr;

  building_ = false;
  std::vector<wire::RegionEntry> regions = std::exchange(next_, {});
  std::ranges::sort(regions, {}, &wire::RegionEntry::base);
  const auto clash = std::ranges::adjacent_find(
      regions, [](const auto& a, const auto& b) { return b.base - a.base < a.length; });
  if (clash != regions.end())
    return refuse(Code::kProtocolError, fmt::format("the peer's regions at {:#x} and {:#x} overlap",
                                                    clash->base, std::next(clash)->base));
  known_ = std::make_shared<const RemoteRegions>(version_, std::move(regions));
  return known_;
}

}  // namespace kvmend::memory
