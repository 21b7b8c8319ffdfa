#include "memory/region_table.h"

#include <fmt/format.h>

#include <iterator>
#include <limits>

#include "base/config.h"

namespace kvmend::memory {
namespace {

std::uintptr_t address_of(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer);
}

std::string range_text(std::uintptr_t base, std::uint64_t length) {
  return fmt::format("[{:#x}, {:#x})", base, base + length);
}

}  // namespace

Result<RegionRef> RegionTable::add(void* base, std::uint64_t length, MemoryKind kind,
                                   Access access) {
  const std::uintptr_t start = address_of(base);
  if (base == nullptr || length == 0 || length > std::numeric_limits<std::uintptr_t>::max() - start)
    return fail(Code::kInvalidArgument, Origin::kCaller,
                fmt::format("region at {:#x} of {} bytes", start, length));
  const auto next = by_base_.lower_bound(start);
  const Region* clash = nullptr;
  if (next != by_base_.end() && next->first - start < length) clash = &slots_[next->second];
  if (next != by_base_.begin()) {
    const auto before = std::prev(next);
    if (start - before->first < slots_[before->second].length) clash = &slots_[before->second];
  }
  if (clash != nullptr)
    return fail(Code::kAlreadyExists, Origin::kCaller,
                fmt::format("region {} overlaps the registered {}", range_text(start, length),
                            range_text(address_of(clash->base), clash->length)));
  if (by_base_.size() >= config::kMaxRegions)
    return fail(Code::kResourceExhausted, Origin::kLocal,
                fmt::format("{} regions are registered already", by_base_.size()));

  std::uint32_t slot = 0;
  if (free_slots_.empty()) {
    slot = static_cast<std::uint32_t>(slots_.size());
    slots_.push_back({.ref = {.slot = slot, .generation = 1}});
  } else {
    slot = free_slots_.back();
    free_slots_.pop_back();
  }
  Region& region = slots_[slot];
  region.base = static_cast<std::byte*>(base);
  region.length = length;
  region.kind = kind;
  region.access = access;
  by_base_.emplace(start, slot);
  total_bytes_ += length;
  ++version_;
  return region.ref;
}

Status RegionTable::remove(const void* base) {
  const auto at = by_base_.find(address_of(base));
  if (at == by_base_.end())
    return {Code::kNotRegistered, Origin::kCaller,
            fmt::format("no region starts at {:#x}", address_of(base))};
  Region& region = slots_[at->second];
  if (observer_ != nullptr) observer_->on_region_ending(region);
  total_bytes_ -= region.length;
  const RegionRef ref = region.ref;
  region = {.ref = {.slot = ref.slot, .generation = ref.generation + 1}};
  if (region.ref.generation != 0) free_slots_.push_back(ref.slot);  // else used up: retired
  by_base_.erase(at);
  ++version_;
  ++removals_;
  return Status::ok();
}

const Region* RegionTable::find_containing(const void* address, std::uint64_t length) const {
  const std::uintptr_t start = address_of(address);
  auto at = by_base_.upper_bound(start);
  if (at == by_base_.begin()) return nullptr;
  const Region& region = slots_[std::prev(at)->second];
  const std::uint64_t offset = start - address_of(region.base);
  return offset < region.length && length <= region.length - offset ? &region : nullptr;
}

std::vector<Region> RegionTable::list() const {
  std::vector<Region> regions;
  regions.reserve(by_base_.size());
  for (const auto& [base, slot] : by_base_) regions.push_back(slots_[slot]);
  return regions;
}

}  // namespace kvmend::memory
