// Safety rule 1 against a model that looks at every byte: random regions, grants with several and
// with overlapping buffers, slices, revocations, expiries, deregistrations.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include "memory/grant_table.h"

namespace kvmend::memory {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kRegionBytes = 96;
constexpr std::size_t kRegions = 3;

struct World {
  std::array<std::array<std::byte, kRegionBytes>, kRegions> memory{};
  RegionTable regions;
  std::vector<RegionRef> refs;
  GrantTable grants{regions, 41};
  std::map<GrantId, Grant> model;  // live ones
  std::map<GrantId, GrantEnd> model_ended;
  Time now{1s};
};

bool page_holds(const GrantComponent& component, const GrantComponent::Buffer& buffer,
                std::uint64_t byte) {
  if (byte < buffer.base_offset) return false;
  const std::uint64_t page = (byte - buffer.base_offset) / buffer.item_bytes;
  return std::ranges::count(component.pages, page) != 0;
}

// The first component, by (base offset, component), with one buffer that holds every byte.
std::optional<std::size_t> model_component(const Grant& grant, const wire::WireSlice& slice) {
  std::optional<std::pair<std::uint64_t, std::size_t>> best;
  for (std::size_t c = 0; c < grant.components.size(); ++c) {
    for (const auto& buffer : grant.components[c].buffers) {
      bool all = buffer.region == slice.region;
      for (std::uint64_t i = 0; all && i < slice.length; ++i)
        all = page_holds(grant.components[c], buffer, slice.offset + i);
      if (all)
        best = std::min(best.value_or(std::pair{~std::uint64_t{0}, c}),
                        std::pair{buffer.base_offset, c});
    }
  }
  return best ? std::optional(best->second) : std::nullopt;
}

Grant random_grant(const World& world) {
  Grant grant{.writer = Incarnation{*rc::gen::inRange<std::uint64_t>(0, 3)},
              .access = static_cast<Access>(*rc::gen::inRange(1, 4)),
              .expires = world.now + 1s * *rc::gen::inRange(0, 5)};
  grant.components.resize(*rc::gen::inRange<std::size_t>(1, 4));
  for (GrantComponent& component : grant.components) {
    std::uint32_t pages_fit = 48;
    component.buffers.resize(*rc::gen::inRange<std::size_t>(1, 4));
    for (auto& buffer : component.buffers) {
      buffer.region = world.refs[*rc::gen::inRange<std::size_t>(0, world.refs.size())];
      buffer.base_offset = *rc::gen::inRange<std::uint64_t>(0, kRegionBytes - 8);
      buffer.item_bytes = *rc::gen::inRange<std::uint64_t>(1, 9);
      pages_fit = std::min<std::uint32_t>(
          pages_fit,
          static_cast<std::uint32_t>((kRegionBytes - buffer.base_offset) / buffer.item_bytes));
    }
    for (std::uint32_t page = 0; page < pages_fit; ++page)
      if (*rc::gen::inRange(0, 3) != 0) component.pages.push_back(page);
  }
  return grant;
}

// Mostly a live one.
GrantId random_id(const World& world) {
  if (!world.model.empty() && *rc::gen::inRange(0, 4) != 0)
    return std::next(world.model.begin(),
                     *rc::gen::inRange(0, static_cast<int>(world.model.size())))
        ->first;
  // Ids count up from the seed; one beyond the last is unknown.
  const std::size_t known = world.model.size() + world.model_ended.size();
  return GrantId{*rc::gen::inRange<std::uint64_t>(42, 43 + known)};
}

wire::WireSlice random_slice(const World& world, GrantId id) {
  wire::WireSlice slice{.region = world.refs[*rc::gen::inRange<std::size_t>(0, world.refs.size())],
                        .offset = *rc::gen::inRange<std::uint64_t>(0, kRegionBytes + 4),
                        .length = *rc::gen::inRange<std::uint32_t>(1, 12)};
  const auto at = world.model.find(id);
  if (at == world.model.end() || *rc::gen::inRange(0, 8) == 0) return slice;
  // Mostly a granted page or two, sometimes a little off.
  const auto& components = at->second.components;
  const auto& component = components[*rc::gen::inRange<std::size_t>(0, components.size())];
  if (component.pages.empty()) return slice;
  const auto& buffer =
      component.buffers[*rc::gen::inRange<std::size_t>(0, component.buffers.size())];
  const auto page = component.pages[*rc::gen::inRange<std::size_t>(0, component.pages.size())];
  slice.region = buffer.region;
  slice.offset = buffer.base_offset + page * buffer.item_bytes;
  slice.length = static_cast<std::uint32_t>(buffer.item_bytes) * *rc::gen::element(1U, 1U, 2U);
  if (*rc::gen::inRange(0, 6) == 0) slice.offset += 1;
  return slice;
}

void step_issue(World& world) {
  Grant grant = random_grant(world);
  const bool live = std::ranges::all_of(grant.components, [&](const GrantComponent& c) {
    return std::ranges::all_of(
        c.buffers, [&](const auto& b) { return world.regions.find(b.region) != nullptr; });
  });
  const auto id = world.grants.issue(grant);
  RC_ASSERT(id.has_value() == live);
  if (!id) return;
  grant.id = *id;
  grant.landed_bytes.assign(grant.components.size(), 0);
  world.model.emplace(*id, std::move(grant));
}

void step_end(World& world) {
  const GrantId id = random_id(world);
  const auto how = *rc::gen::element(GrantEnd::kCompleted, GrantEnd::kRevoked);
  const bool was_live = world.model.erase(id) != 0;
  RC_ASSERT(world.grants.end(id, how) == was_live);
  if (was_live) world.model_ended.emplace(id, how);
}

void step_time(World& world) {
  world.now += 500ms;
  if (*rc::gen::inRange(0, 2) == 0) return;  // an expired grant may stand for a while
  for (const Grant& grant : world.grants.expire(world.now)) {
    RC_ASSERT(grant.expires <= world.now);
    RC_ASSERT(world.model.erase(grant.id) == 1U);
    world.model_ended.emplace(grant.id, GrantEnd::kExpired);
  }
  Time next = kForever;
  for (const auto& [id, grant] : world.model) next = std::min(next, grant.expires);
  RC_ASSERT(next > world.now);
  RC_ASSERT(world.grants.next_expiry() == next);
}

void step_region(World& world) {
  const auto i = *rc::gen::inRange<std::size_t>(0, kRegions);
  RC_ASSERT(world.regions.remove(world.memory[i].data()).is_ok());
  const auto access = static_cast<Access>(*rc::gen::inRange(0, 4));
  const auto ref =
      world.regions.add(world.memory[i].data(), kRegionBytes, MemoryKind::kHost, access);
  RC_ASSERT(ref.has_value());
  world.refs.push_back(*ref);
}

void step_resolve(World& world) {
  const GrantId id = *rc::gen::inRange(0, 8) == 0 ? kStandingGrant : random_id(world);
  const auto want = *rc::gen::element(Access::kRemoteRead, Access::kRemoteWrite);
  const auto at = world.model.find(id);
  Incarnation writer{*rc::gen::inRange<std::uint64_t>(1, 3)};
  if (at != world.model.end() && *rc::gen::inRange(0, 4) != 0) writer = at->second.writer;
  std::vector<wire::WireSlice> slices(*rc::gen::inRange<std::size_t>(1, 4));
  for (auto& slice : slices) slice = random_slice(world, id);

  const bool grant_ok =
      id == kStandingGrant || (at != world.model.end() && at->second.expires > world.now &&
                               (!at->second.writer.is_set() || at->second.writer == writer) &&
                               allows(at->second.access, want));
  const auto covered = [&](const wire::WireSlice& slice) {
    const Region* region = world.regions.find(slice.region);
    if (region == nullptr || slice.offset + slice.length > kRegionBytes) return false;
    return id == kStandingGrant ? allows(region->access, want)
                                : model_component(at->second, slice).has_value();
  };
  const std::size_t first_bad = static_cast<std::size_t>(
      grant_ok ? std::ranges::find_if_not(slices, covered) - slices.begin() : 0);
  const bool allowed = grant_ok && first_bad == slices.size();

  std::vector<iovec> where;
  std::uint32_t argument = 1000;
  const Status status = world.grants.resolve(id, want, writer, slices, world.now, where, &argument);
  RC_ASSERT(status.is_ok() == allowed);
  RC_ASSERT(where.size() == (allowed ? slices.size() : 0U));
  if (grant_ok && !allowed) RC_ASSERT(argument == first_bad);
  if (const auto ended = world.model_ended.find(id); ended != world.model_ended.end())
    RC_ASSERT(status.code() == (ended->second == GrantEnd::kCompleted ? Code::kAlreadyExists
                                                                      : Code::kPermissionDenied));
  if (!allowed) return;
  RC_ASSERT(world.grants.still_allowed(id, world.now, world.regions.removals()));
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const std::byte* base = world.regions.find(slices[i].region)->base;
    RC_ASSERT(static_cast<std::byte*>(where[i].iov_base) - base ==
              static_cast<std::ptrdiff_t>(slices[i].offset));
    RC_ASSERT(where[i].iov_len == slices[i].length);
  }
  if (id == kStandingGrant) return;
  RC_ASSERT(world.grants.note_landed(id, slices));
  for (const auto& slice : slices)
    at->second.landed_bytes[*model_component(at->second, slice)] += slice.length;
  RC_ASSERT(world.grants.find(id)->landed_bytes == at->second.landed_bytes);
}

TEST(GrantProperty, ResolvesExactlyWhatIsCoveredAtThatMoment) {
  EXPECT_TRUE(rc::check([] {
    World world;
    for (auto& memory : world.memory)
      world.refs.push_back(
          *world.regions.add(memory.data(), memory.size(), MemoryKind::kHost, Access::kReadWrite));
    const int steps = *rc::gen::inRange(1, 120);
    for (int i = 0; i < steps; ++i) {
      switch (*rc::gen::inRange(0, 16)) {
        case 0:
        case 1:
        case 2:
          step_issue(world);
          break;
        case 3:
          step_end(world);
          break;
        case 4:
          step_time(world);
          break;
        case 5:
          step_region(world);
          break;
        default:
          step_resolve(world);
      }
      RC_ASSERT(world.grants.size() == world.model.size());
    }
  }));
}

}  // namespace
}  // namespace kvmend::memory
