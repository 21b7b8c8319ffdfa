#include "kv/page_holds.h"

#include <algorithm>
#include <utility>

#include "base/sabotage.h"
#include "kv/layout.h"

namespace kvmend::kv {
namespace {

std::uint64_t pool_pages(const KvLayout& layout) {
  return layout.components[kv_component(layout)].items;
}

}  // namespace

PageHolds::PageHolds(const Surroundings& around, KvRole role)
    : around_(around),
      role_(role),
      quarantine_(pool_pages(around.layout), around.options.quarantine_share),
      timer_(around.port.loop()) {}

Status PageHolds::admits() {
  Status refused = quarantine_.admits();
  if (!refused.is_ok()) ++around_.counters.quarantine_refused;
  return refused;
}

void PageHolds::hold(const RoomKey& key, const std::shared_ptr<RoomHandle>& handle,
                     std::uint64_t pages, const std::vector<Peer>& holders, Time deadline) {
  const Duration unproven = around_.options.quarantine_unproven_after;
  memory::Quarantine::Held held{
      .pages = pages,
      .fence_at = deadline,
      .unproven_at = unproven > Duration{} ? saturating_add(deadline, unproven) : kForever,
      .on_released = [this, key, weak = std::weak_ptr(handle)](memory::Release how) {
        on_released(key, weak, how);
      }};
  if (KVM_SABOTAGE(quarantine_on_timeout))
    held.unproven_at = around_.now() + std::chrono::milliseconds{100};
  for (const Peer& peer : holders) held.holders.push_back({peer.session_id, peer.incarnation});
  ids_.insert_or_assign(key, quarantine_.hold(std::move(held)));
  changed();
}

void PageHolds::on_released(const RoomKey& key, const std::weak_ptr<RoomHandle>& weak,
                            memory::Release how) {
  ids_.erase(key);
  if (const auto handle = weak.lock()) handle->release_pages();
  const bool unproven = how == memory::Release::kUnproven;
  ++(unproven ? around_.counters.quarantine_unproven : around_.counters.quarantine_released);
  if (RoomEvents* events = around_.port.room_events()) events->on_quarantine_released(role_, how);
  std::uint64_t more = 0;
  if (unproven && unproven_log_.allow(around_.now(), more))
    spdlog::warn(
        "kv: room {}: its pages are given back without a proof that nobody touches them "
        "({} more since)",
        key.room.value, more);
}

void PageHolds::on_drained(const RoomKey& key, const Peer& from) {
  const auto at = ids_.find(key);
  if (at != ids_.end() && quarantine_.on_drained(at->second, from.session_id, from.incarnation))
    changed();
}

void PageHolds::on_incarnation(const std::string& session_id, Incarnation now) {
  if (ids_.empty()) return;
  quarantine_.on_incarnation(session_id, now);
  changed();
}

void PageHolds::on_registered_anew(const std::string& session_id) {
  if (ids_.empty()) return;
  quarantine_.on_registered_anew(session_id);
  changed();
}

void PageHolds::fence_due() {
  if (!can_fence_) return;
  for (const std::string& session_id : quarantine_.fences_due(around_.now())) {
    const auto address = parse_address(session_id);
    if (!address || !fencing_.insert(session_id).second) continue;
    const bool begun = around_.port.fence(
        *address, [this, session_id, last = quarantine_.last(), alive = std::weak_ptr(alive_)] {
          if (alive.expired()) return;
          fencing_.erase(session_id);
          quarantine_.on_fenced(session_id, last);
          changed();
        });
    if (begun) continue;
    can_fence_ = false;  // nor ever will it: the quarantine waits for another proof
    fencing_.clear();
    return;
  }
}

void PageHolds::changed() {
  around_.counters.quarantined_rooms = quarantine_.size();
  around_.counters.quarantined_pages = quarantine_.pages();
  if (RoomEvents* events = around_.port.room_events())
    events->on_quarantine(role_, quarantine_.size(), quarantine_.pages(), quarantine_.over_cap());
  std::uint64_t more = 0;
  if (quarantine_.over_cap() && full_log_.allow(around_.now(), more))
    spdlog::error("kv: new rooms are refused: {}", quarantine_.admits().detail());
  arm();
}

void PageHolds::arm() {
  const Time now = around_.now();
  Time next = quarantine_.next_due(now);
  if (can_fence_)
    for (const std::string& session_id : quarantine_.fences_due(now))
      if (!fencing_.contains(session_id)) next = now;
  if (next == kForever) return timer_.cancel();
  timer_.arm(next, [this] {
    quarantine_.expire(around_.now());
    fence_due();
    changed();
  });
}

void PageHolds::close() {
  if (around_.port.landing().failed_writes_rest) quarantine_.release_all(memory::Release::kFenced);
  timer_.cancel();
  ids_.clear();
}

}  // namespace kvmend::kv
