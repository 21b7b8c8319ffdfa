#include "kv/announced_rooms.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/config.h"

namespace kvmend::kv {

std::size_t Announcement::bytes() const {
  std::size_t sum = sizeof(Announcement) + peer.session_id.size();
  for (const wire::KvPages& pages : metadata.pages)
    sum += sizeof pages + pages.pages.size() * sizeof(std::uint32_t);
  return sum;
}

void AnnouncedRooms::count() {
  counters_.announced = by_expiry_.size();
  counters_.announced_bytes = bytes_;
}

void AnnouncedRooms::add_usage(const Announcement& announcement) {
  const std::size_t bytes = announcement.bytes();
  Usage& usage = per_peer_[announcement.peer.session_id];
  ++usage.rooms;
  usage.bytes += bytes;
  bytes_ += bytes;
}

void AnnouncedRooms::drop_usage(const Announcement& announcement) {
  const std::size_t bytes = announcement.bytes();
  const auto at = per_peer_.find(announcement.peer.session_id);
  at->second.bytes -= bytes;
  bytes_ -= bytes;
  if (--at->second.rooms == 0) per_peer_.erase(at);
}

Status AnnouncedRooms::check_room(std::vector<Entry>& standing, const Announcement& announcement) {
  const std::uint32_t required = announcement.metadata.required_destinations;
  for (std::size_t i = 0; i < standing.size(); ++i)
    if (standing[i].announcement.peer.session_id == announcement.peer.session_id) {
      static_cast<void>(remove(standing, i));  // decode has one live attempt: this one
      break;
    }
  // A room that somebody gave up gives way to a new request under its number.
  for (std::size_t i = standing.size(); i-- > 0 && standing.size() >= required;)
    if (standing[i].announcement.aborted) static_cast<void>(remove(standing, i));
  if (standing.empty()) return {};
  const Announcement& first = standing.front().announcement;
  if (first.metadata.required_destinations != required)
    return {Code::kInvalidArgument, Origin::kPeer,
            fmt::format("room {} is for {} decode engines by the word of {}, for {} by that of {}",
                        announcement.metadata.room.value, first.metadata.required_destinations,
                        first.peer.session_id, required, announcement.peer.session_id)};
  if (standing.size() >= required)
    return {Code::kAlreadyExists, Origin::kPeer,
            fmt::format("room {} is announced by {} already", announcement.metadata.room.value,
                        first.peer.session_id)};
  return {};
}

Status AnnouncedRooms::check_limits(const Announcement& announcement) {
  const std::size_t bytes = announcement.bytes();
  const auto refuse = [&](std::size_t rooms, std::size_t held, std::size_t max_rooms,
                          std::size_t max_bytes, const std::string& whose) {
    ++counters_.announced_refused;
    return Status(Code::kResourceExhausted, Origin::kLocal,
                  fmt::format("{} rooms ({} bytes){} are announced and wait for their senders; the "
                              "maximum is {} rooms, {} bytes",
                              rooms, held, whose, max_rooms, max_bytes));
  };
  if (size() >= config::kMaxAnnouncedRooms || bytes_ + bytes > config::kMaxAnnouncedBytes)
    return refuse(size(), bytes_, config::kMaxAnnouncedRooms, config::kMaxAnnouncedBytes, "");
  const auto at = per_peer_.find(announcement.peer.session_id);
  if (at == per_peer_.end()) return {};
  const Usage& usage = at->second;
  if (usage.rooms >= config::kMaxAnnouncedRoomsPerPeer ||
      usage.bytes + bytes > config::kMaxAnnouncedBytesPerPeer)
    return refuse(usage.rooms, usage.bytes, config::kMaxAnnouncedRoomsPerPeer,
                  config::kMaxAnnouncedBytesPerPeer, " of " + announcement.peer.session_id);
  return {};
}

Status AnnouncedRooms::add(Announcement announcement, Time expires) {
  const RoomId room = announcement.metadata.room;
  if (const auto at = rooms_.find(room); at != rooms_.end()) {
    Status refused = check_room(at->second, announcement);
    if (at->second.empty()) rooms_.erase(at);
    if (!refused.is_ok()) return refused;
  }
  if (Status refused = check_limits(announcement); !refused.is_ok()) return refused;
  add_usage(announcement);
  by_expiry_.emplace(expires, room, announcement.peer.session_id);
  rooms_[room].push_back({std::move(announcement), expires});
  count();
  return {};
}

Announcement* AnnouncedRooms::find(RoomId room, const Peer& peer, std::uint32_t attempt) {
  const auto at = rooms_.find(room);
  if (at == rooms_.end()) return nullptr;
  for (Entry& entry : at->second)
    if (entry.announcement.peer.incarnation == peer.incarnation &&
        entry.announcement.metadata.attempt == attempt)
      return &entry.announcement;
  return nullptr;
}

Announcement AnnouncedRooms::remove(std::vector<Entry>& list, std::size_t index) {
  Entry entry = std::move(list[index]);
  list.erase(list.begin() + static_cast<std::ptrdiff_t>(index));
  drop_usage(entry.announcement);
  by_expiry_.erase(
      {entry.expires, entry.announcement.metadata.room, entry.announcement.peer.session_id});
  count();
  return std::move(entry.announcement);
}

std::vector<Announcement> AnnouncedRooms::take(RoomId room) {
  std::vector<Announcement> out;
  const auto at = rooms_.find(room);
  if (at == rooms_.end()) return out;
  while (!at->second.empty()) out.push_back(remove(at->second, 0));
  rooms_.erase(at);
  return out;
}

void AnnouncedRooms::abort(Announcement& announcement, Status why) {
  if (announcement.aborted) return;
  drop_usage(announcement);
  announcement.metadata.pages = {};
  announcement.aborted = std::move(why);
  add_usage(announcement);
  count();
}

bool AnnouncedRooms::mark_aborted(RoomId room, const Peer& peer, std::uint32_t attempt,
                                  Status why) {
  Announcement* standing = find(room, peer, attempt);
  if (standing == nullptr) return false;
  abort(*standing, std::move(why));
  return true;
}

std::vector<Announcement> AnnouncedRooms::expire(Time now) {
  std::vector<Announcement> out;
  while (next_expiry() <= now) {
    const auto [when, room, session_id] = *by_expiry_.begin();
    const auto at = rooms_.find(room);
    const auto entry = std::ranges::find_if(at->second, [&](const Entry& one) {
      return one.announcement.peer.session_id == session_id;
    });
    out.push_back(remove(at->second, static_cast<std::size_t>(entry - at->second.begin())));
    if (at->second.empty()) rooms_.erase(at);
    ++counters_.announced_expired;
  }
  return out;
}

void AnnouncedRooms::on_incarnation(const std::string& session_id, Incarnation now) {
  if (!per_peer_.contains(session_id)) return;
  for (auto& [room, list] : rooms_)
    for (Entry& entry : list)
      if (entry.announcement.peer.session_id == session_id &&
          entry.announcement.peer.incarnation != now)
        abort(entry.announcement, peer_gone(session_id, now));
}

std::vector<Announcement> AnnouncedRooms::take_all() {
  std::vector<Announcement> out;
  while (!rooms_.empty())
    for (Announcement& one : take(rooms_.begin()->first)) out.push_back(std::move(one));
  return out;
}

}  // namespace kvmend::kv
