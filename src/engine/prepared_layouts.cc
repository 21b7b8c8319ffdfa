#include "engine/prepared_layouts.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/config.h"
#include "base/try.h"

namespace kvmend::engine {
namespace {

Status invalid(std::string detail) {
  return {Code::kInvalidArgument, Origin::kCaller, std::move(detail)};
}

Status check(const char* name, PageLayout& layout) {
  if (layout.stride == 0) layout.stride = layout.page_bytes;
  if (layout.bases.empty() || layout.page_bytes == 0 || layout.pages == 0)
    return invalid(fmt::format("the {} layout has {} buffers of {} pages of {} bytes", name,
                               layout.bases.size(), layout.pages, layout.page_bytes));
  if (layout.stride < layout.page_bytes)
    return invalid(fmt::format("the {} layout's stride {} is below its page size {}", name,
                               layout.stride, layout.page_bytes));
  std::uint64_t extent = 0;
  if (layout.pages > (1ULL << 32U) ||
      __builtin_mul_overflow(layout.stride, layout.pages, &extent) ||
      std::ranges::any_of(layout.bases,
                          [&](std::uint64_t base) { return base == 0 || base + extent < base; }))
    return invalid(fmt::format("the {} layout doesn't fit the address space", name));
  return Status::ok();
}

Status check_indices(const char* name, std::span<const std::uint32_t> pages, std::uint64_t limit) {
  const std::uint32_t highest = pages.empty() ? 0 : *std::ranges::max_element(pages);
  if (highest < limit) return Status::ok();
  return {Code::kOutOfRange, Origin::kCaller,
          fmt::format("{} page {} of {}", name, highest, limit)};
}

}  // namespace

Result<std::shared_ptr<const PreparedLayouts>> PreparedLayouts::create(Address peer,
                                                                       PageLayout local,
                                                                       PageLayout remote) {
  KVM_RETURN_IF_ERROR(check("local", local));
  KVM_RETURN_IF_ERROR(check("remote", remote));
  if (local.bases.size() != remote.bases.size() || local.page_bytes != remote.page_bytes)
    return std::unexpected(
        invalid(fmt::format("{} buffers of {} byte pages here, {} of {} there", local.bases.size(),
                            local.page_bytes, remote.bases.size(), remote.page_bytes)));
  return std::shared_ptr<const PreparedLayouts>(
      new PreparedLayouts(std::move(peer), std::move(local), std::move(remote)));
}

Status PreparedLayouts::check_registered(const LocalRegions& regions) const {
  const std::uint64_t length = local_.stride * (local_.pages - 1) + local_.page_bytes;
  std::size_t hint = 0;
  for (std::size_t i = 0; i < local_.bases.size(); ++i)
    if (!regions.contains(local_.bases[i], length, hint))
      return {Code::kNotRegistered, Origin::kCaller,
              fmt::format("buffer {}: {} bytes at {:#x} aren't registered here", i, length,
                          local_.bases[i])};
  return Status::ok();
}

Status PreparedLayouts::append_pieces(std::span<const std::uint32_t> local_pages,
                                      std::span<const std::uint32_t> remote_pages,
                                      std::vector<transport::Piece>& pieces) const {
  if (local_pages.empty() || local_pages.size() != remote_pages.size())
    return invalid(
        fmt::format("{} local pages and {} remote ones", local_pages.size(), remote_pages.size()));
  if (local_pages.size() > config::kMaxSlicesPerTransfer / local_.bases.size())
    return {Code::kResourceExhausted, Origin::kCaller,
            fmt::format("{} pages of {} buffers in one transfer", local_pages.size(),
                        local_.bases.size())};
  Status status = check_indices("local", local_pages, local_.pages);
  if (status.is_ok()) status = check_indices("remote", remote_pages, remote_.pages);
  if (!status.is_ok()) return status;
  pieces.reserve(pieces.size() + local_pages.size() * local_.bases.size());
  const std::uint64_t bytes = local_.page_bytes;
  for (std::size_t b = 0; b < local_.bases.size(); ++b) {
    std::uint64_t local_end = 0;
    std::uint64_t remote_end = 0;
    for (std::size_t i = 0; i < local_pages.size(); ++i) {
      const std::uint64_t local = local_.bases[b] + local_pages[i] * local_.stride;
      const std::uint64_t remote = remote_.bases[b] + remote_pages[i] * remote_.stride;
      if (i > 0 && local == local_end && remote == remote_end) {
        pieces.back().length += bytes;
      } else {
        pieces.push_back({reinterpret_cast<std::byte*>(local), {}, remote, bytes});  // NOLINT
      }
      local_end = local + bytes;
      remote_end = remote + bytes;
    }
  }
  return Status::ok();
}

}  // namespace kvmend::engine
