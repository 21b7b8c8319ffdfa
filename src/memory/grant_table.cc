#include "memory/grant_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "base/check.h"
#include "base/config.h"
#include "base/sabotage.h"

namespace kvmend::memory {
namespace {

constexpr std::uint32_t kNoPage = 0xFFFF'FFFFU;  // never an index: runs of pages end beyond theirs

Status caller_error(Code code, std::string detail) {
  return {code, Origin::kCaller, std::move(detail)};
}

bool inside(const wire::WireSlice& slice, const Region& region) {
  return slice.offset <= region.length && slice.length <= region.length - slice.offset;
}

iovec to_iovec(const wire::WireSlice& slice, const Region& region) {
  return {.iov_base = region.base + slice.offset, .iov_len = slice.length};
}

// Why a slice was refused, where the grant itself is fine.
Status slice_error(const RegionTable& regions, const wire::WireSlice& slice, GrantId grant) {
  const std::string text = fmt::format("region {}.{} offset {} length {}", slice.region.slot,
                                       slice.region.generation, slice.offset, slice.length);
  const Region* region = regions.find(slice.region);
  if (region == nullptr) return caller_error(Code::kNotRegistered, text + " isn't registered");
  if (!inside(slice, *region))
    return caller_error(Code::kOutOfRange,
                        fmt::format("{} exceeds the region's {} bytes", text, region->length));
  return caller_error(Code::kPermissionDenied,
                      fmt::format("grant {} doesn't cover {}", grant.value, text));
}

Status component_error(const RegionTable& regions, const GrantComponent& component) {
  if (std::ranges::adjacent_find(component.pages, std::ranges::greater_equal{}) !=
      component.pages.end())
    return caller_error(Code::kInvalidArgument, "the pages of a grant aren't sorted and unique");
  if (!component.pages.empty() && component.pages.back() == kNoPage)
    return caller_error(Code::kInvalidArgument, fmt::format("page {} in a grant", kNoPage));
  const std::uint64_t pages =
      component.pages.empty() ? 0 : std::uint64_t{component.pages.back()} + 1;
  for (const GrantComponent::Buffer& buffer : component.buffers) {
    const Region* region = regions.find(buffer.region);
    if (region == nullptr)
      return caller_error(Code::kNotRegistered,
                          fmt::format("region {}.{} of a grant isn't registered",
                                      buffer.region.slot, buffer.region.generation));
    if (buffer.item_bytes == 0)
      return caller_error(Code::kInvalidArgument, "pages of 0 bytes in a grant");
    if (buffer.base_offset > region->length ||
        pages > (region->length - buffer.base_offset) / buffer.item_bytes)
      return caller_error(
          Code::kOutOfRange,
          fmt::format("page {} of {} bytes from offset {} exceeds its region of {} bytes",
                      pages == 0 ? 0 : pages - 1, buffer.item_bytes, buffer.base_offset,
                      region->length));
  }
  return Status::ok();
}

}  // namespace

Status GrantTable::check_new(const Grant& grant) const {
  if (live_.size() >= config::kMaxGrants)
    return {Code::kResourceExhausted, Origin::kLocal,
            fmt::format("{} grants are live already", live_.size())};
  if (grant.access == Access::kNone)
    return caller_error(Code::kInvalidArgument, "a grant without access");
  std::size_t buffers = 0;
  for (const GrantComponent& component : grant.components) buffers += component.buffers.size();
  if (grant.components.size() > config::kMaxGrantComponents || buffers > config::kMaxGrantBuffers)
    return caller_error(
        Code::kInvalidArgument,
        fmt::format("a grant of {} components and {} buffers", grant.components.size(), buffers));
  for (const GrantComponent& component : grant.components)
    if (Status status = component_error(regions_, component); !status.is_ok()) return status;
  return Status::ok();
}

Result<GrantId> GrantTable::issue(Grant grant) {
  if (Status status = check_new(grant); !status.is_ok()) return std::unexpected(std::move(status));
  do {
    ++last_id_;
  } while (last_id_ == 0 || last_id_ == kStandingGrant.value);
  const GrantId id{last_id_};
  grant.id = id;
  grant.landed_bytes.assign(grant.components.size(), 0);
  if (grant.expires != kForever) by_expiry_.emplace(grant.expires, id);
  GrantCover cover(grant.components);
  const bool fresh =
      live_.try_emplace(id, Entry{.grant = std::move(grant), .cover = std::move(cover)}).second;
  KVM_CHECK(fresh, "grant ids never repeat");
  return id;
}

void GrantTable::remember(GrantId id, GrantEnd how) {
  if (ended_order_.size() >= config::kEndedGrantsRemembered) {
    ended_.erase(ended_order_.front());
    ended_order_.pop_front();
  }
  ended_order_.push_back(id);
  ended_.emplace(id, how);
}

bool GrantTable::end(GrantId id, GrantEnd how) {
  const auto at = live_.find(id);
  if (at == live_.end()) return false;
  if (KVM_SABOTAGE(late_retry_after_success) && how == GrantEnd::kCompleted) {
    at->second.landed_chunks.clear();  // else its copies would be read past all the same
    return true;
  }
  if (observer_ != nullptr) observer_->on_grant_ending(id);
  by_expiry_.erase({at->second.grant.expires, id});
  live_.erase(at);
  remember(id, how);
  return true;
}

std::vector<Grant> GrantTable::expire(Time now) {
  std::vector<Grant> expired;
  while (!by_expiry_.empty() && by_expiry_.begin()->first <= now) {
    const auto at = live_.find(by_expiry_.begin()->second);
    KVM_CHECK(at != live_.end());
    if (KVM_SABOTAGE(expired_grant_honoured)) {
      by_expiry_.erase(by_expiry_.begin());
      continue;
    }
    if (observer_ != nullptr) observer_->on_grant_ending(at->first);
    by_expiry_.erase(by_expiry_.begin());
    remember(at->first, GrantEnd::kExpired);
    expired.push_back(std::move(at->second.grant));
    live_.erase(at);
  }
  return expired;
}

Time GrantTable::next_expiry() const {
  return by_expiry_.empty() ? kForever : by_expiry_.begin()->first;
}

const Grant* GrantTable::find(GrantId id) const {
  const auto at = live_.find(id);
  return at == live_.end() ? nullptr : &at->second.grant;
}

GrantEnd GrantTable::ended(GrantId id) const {
  const auto at = ended_.find(id);
  return at == ended_.end() ? GrantEnd::kUnknown : at->second;
}

Status GrantTable::refusal(GrantId id) const {
  switch (ended(id)) {
    case GrantEnd::kCompleted:
      return caller_error(Code::kAlreadyExists,
                          fmt::format("grant {}: already complete", id.value));
    case GrantEnd::kRevoked:
      return caller_error(Code::kPermissionDenied, fmt::format("grant {} was revoked", id.value));
    case GrantEnd::kExpired:
      return caller_error(Code::kPermissionDenied, fmt::format("grant {} has expired", id.value));
    case GrantEnd::kUnknown:
      break;
  }
  return caller_error(Code::kPermissionDenied, fmt::format("grant {} is unknown", id.value));
}

Status GrantTable::resolve_standing(Access want, std::span<const wire::WireSlice> slices,
                                    std::vector<iovec>& where, std::uint32_t* argument) const {
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const Region* region = regions_.find(slices[i].region);
    if (region == nullptr || !inside(slices[i], *region) || !allows(region->access, want)) {
      if (argument != nullptr) *argument = static_cast<std::uint32_t>(i);
      return slice_error(regions_, slices[i], kStandingGrant);
    }
    where[i] = to_iovec(slices[i], *region);
  }
  return Status::ok();
}

Status GrantTable::resolve_room(const Entry& entry, std::span<const wire::WireSlice> slices,
                                std::vector<iovec>& where, std::uint32_t* argument) const {
  GrantCover::Hint hint;
  const Region* region = nullptr;
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const wire::WireSlice& slice = slices[i];
    if (region == nullptr || region->ref != slice.region) region = regions_.find(slice.region);
    if (region == nullptr || slice.length == 0 ||
        entry.cover.component_of(slice.region, slice.offset, slice.length, hint) ==
            GrantCover::kNone) {
      if (argument != nullptr) *argument = static_cast<std::uint32_t>(i);
      return slice_error(regions_, slice, entry.grant.id);
    }
    where[i] = to_iovec(slice, *region);  // issue() made sure that pages end inside their region
  }
  return Status::ok();
}

Status GrantTable::resolve(GrantId id, Access want, Incarnation writer,
                           std::span<const wire::WireSlice> slices, Time now,
                           std::vector<iovec>& where, std::uint32_t* argument) {
  where.clear();
  Status status;
  if (id == kStandingGrant) {
    where.resize(slices.size());
    status = resolve_standing(want, slices, where, argument);
  } else if (const auto at = live_.find(id); at == live_.end()) {
    return refusal(id);
  } else {
    const Grant& grant = at->second.grant;
    if (grant.expires <= now && !KVM_SABOTAGE(expired_grant_honoured))
      return caller_error(Code::kPermissionDenied, fmt::format("grant {} has expired", id.value));
    if (grant.writer.is_set() && grant.writer != writer && !KVM_SABOTAGE(no_writer_check))
      return caller_error(Code::kPermissionDenied,
                          fmt::format("grant {} belongs to another incarnation", id.value));
    if (!allows(grant.access, want))
      return caller_error(Code::kPermissionDenied,
                          fmt::format("grant {} doesn't allow this operation", id.value));
    where.resize(slices.size());
    status = resolve_room(at->second, slices, where, argument);
    if (status.is_ok() && !std::exchange(at->second.used, true) && on_first_use_)
      on_first_use_(grant);
  }
  if (!status.is_ok()) where.clear();
  return status;
}

bool GrantTable::still_allowed(GrantId id, Time now, std::uint64_t removals) const {
  if (removals != regions_.removals()) return false;
  if (id == kStandingGrant) return true;
  const auto at = live_.find(id);
  return at != live_.end() &&
         (at->second.grant.expires > now || KVM_SABOTAGE(expired_grant_honoured));
}

bool GrantTable::note_landed(GrantId id, std::span<const wire::WireSlice> slices,
                             Incarnation writer, ChunkId chunk) {
  const auto at = live_.find(id);
  if (at == live_.end()) return false;
  Entry& entry = at->second;
  if (chunk.is_set()) {
    if (entry.landed_chunks.size() >= config::kMaxLandedChunksPerGrant) return false;
    if (!entry.landed_chunks.insert({writer, chunk}).second && !KVM_SABOTAGE(retry_counted_twice))
      return false;
  }
  GrantCover::Hint hint;
  for (const wire::WireSlice& slice : slices) {
    const std::uint32_t component =
        entry.cover.component_of(slice.region, slice.offset, slice.length, hint);
    if (component != GrantCover::kNone) entry.grant.landed_bytes[component] += slice.length;
  }
  return true;
}

bool GrantTable::has_landed(GrantId id, Incarnation writer, ChunkId chunk) const {
  const auto at = live_.find(id);
  return at != live_.end() && at->second.landed_chunks.contains({writer, chunk}) &&
         !KVM_SABOTAGE(landed_chunk_written_again);
}

}  // namespace kvmend::memory
