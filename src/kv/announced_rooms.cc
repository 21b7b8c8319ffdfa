#include "kv/announced_rooms.h"

#include <fmt/format.h>

#include "base/config.h"

namespace kvmend::kv {

std::size_t Announcement::bytes() const {
  std::size_t sum = sizeof(Announcement) + peer.session_id.size();
  for (const wire::KvPages& pages : metadata.pages)
    sum += sizeof pages + pages.pages.size() * sizeof(std::uint32_t);
  return sum;
}

void AnnouncedRooms::count() {
  counters_.announced = rooms_.size();
  counters_.announced_bytes = bytes_;
}

Status AnnouncedRooms::add(Announcement announcement, Time expires) {
  const RoomId room = announcement.metadata.room;
  if (rooms_.contains(room))
    return {Code::kAlreadyExists, Origin::kPeer,
            fmt::format("room {} is announced by {} already", room.value,
                        rooms_.at(room).announcement.peer.session_id)};
  const std::size_t bytes = announcement.bytes();
  if (rooms_.size() >= config::kMaxAnnouncedRooms || bytes_ + bytes > config::kMaxAnnouncedBytes) {
    ++counters_.announced_refused;
    return {
        Code::kResourceExhausted, Origin::kLocal,
        fmt::format("{} rooms ({} bytes) are announced and wait for their senders; the maximum "
                    "is {} rooms, {} bytes",
                    rooms_.size(), bytes_, config::kMaxAnnouncedRooms, config::kMaxAnnouncedBytes)};
  }
  bytes_ += bytes;
  by_expiry_.emplace(expires, room);
  rooms_.emplace(room, Entry{std::move(announcement), expires});
  count();
  return {};
}

Announcement* AnnouncedRooms::find(RoomId room) {
  const auto at = rooms_.find(room);
  return at == rooms_.end() ? nullptr : &at->second.announcement;
}

Announcement AnnouncedRooms::remove(std::unordered_map<RoomId, Entry>::iterator at) {
  Announcement out = std::move(at->second.announcement);
  bytes_ -= out.bytes();
  by_expiry_.erase({at->second.expires, at->first});
  rooms_.erase(at);
  count();
  return out;
}

std::optional<Announcement> AnnouncedRooms::take(RoomId room) {
  const auto at = rooms_.find(room);
  if (at == rooms_.end()) return std::nullopt;
  return remove(at);
}

void AnnouncedRooms::mark_aborted(RoomId room, Status why) {
  const auto at = rooms_.find(room);
  if (at == rooms_.end() || at->second.announcement.aborted) return;
  Announcement& announcement = at->second.announcement;
  bytes_ -= announcement.bytes();
  announcement.metadata.pages.clear();
  announcement.aborted = std::move(why);
  bytes_ += announcement.bytes();
  count();
}

std::vector<Announcement> AnnouncedRooms::expire(Time now) {
  std::vector<Announcement> out;
  while (!by_expiry_.empty() && by_expiry_.begin()->first <= now) {
    out.push_back(remove(rooms_.find(by_expiry_.begin()->second)));
    ++counters_.announced_expired;
  }
  return out;
}

void AnnouncedRooms::on_incarnation(const std::string& session_id, Incarnation now) {
  std::vector<RoomId> gone;
  for (const auto& [room, entry] : rooms_)
    if (entry.announcement.peer.session_id == session_id &&
        entry.announcement.peer.incarnation != now)
      gone.push_back(room);
  for (const RoomId room : gone) static_cast<void>(take(room));
}

std::vector<Announcement> AnnouncedRooms::take_all() {
  std::vector<Announcement> out;
  while (!rooms_.empty()) out.push_back(remove(rooms_.begin()));
  return out;
}

}  // namespace kvmend::kv
