#include "sim/kv_port.h"

#include <fmt/format.h>

namespace kvmend::sim {

Result<GrantId> WatchedPort::issue_grant(memory::Grant grant) {
  Permit permit{.use = Use::kLand,
                .what = fmt::format("room {}", grant.room.value),
                .expires = permits_outlive_grants() ? kForever : grant.expires,
                .any_content = any_content_};
  for (std::size_t c = 0; c < grant.components.size(); ++c) {
    const memory::GrantComponent& component = grant.components[c];
    for (std::size_t b = 0; b < component.buffers.size(); ++b) {
      const memory::GrantComponent::Buffer& buffer = component.buffers[b];
      const memory::Region* region = instance_.engine().regions().find(buffer.region);
      if (region == nullptr) continue;
      const std::size_t base = instance_.pool().offset_of(region->base) + buffer.base_offset;
      for (const std::uint32_t page : component.pages)
        permit.segments.push_back(
            {base + page * buffer.item_bytes, buffer.item_bytes, seed_(grant.room, c, b, page)});
    }
  }
  const RoomId room = grant.room;
  auto id = inner_.issue_grant(std::move(grant));
  if (id) issued_[*id] = {room, instance_.pool().allow(std::move(permit))};
  return id;
}

bool WatchedPort::end_grant(GrantId grant, memory::GrantEnd how) {
  instance_.pool().look();
  const bool live = inner_.end_grant(grant, how);
  if (permits_outlive_grants()) return live;
  if (const auto at = issued_.find(grant); at != issued_.end()) {
    instance_.pool().end(at->second.permit);
    issued_.erase(at);
  }
  return live;
}

std::vector<GrantId> WatchedPort::grants() const {
  std::vector<GrantId> out;
  for (const auto& [id, issued] : issued_) out.push_back(id);
  return out;
}

void WatchedPort::take_back(RoomId room) {
  std::erase_if(issued_, [&](const auto& entry) {
    if (entry.second.room != room) return false;
    instance_.pool().end(entry.second.permit);
    return true;
  });
}

}  // namespace kvmend::sim
