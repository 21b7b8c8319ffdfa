// The decode side of a manager: registrations, live rooms, and how the others ended. Loop thread.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "kv/abort_notices.h"
#include "kv/decode_room.h"
#include "kv/finished_rooms.h"
#include "kv/page_holds.h"
#include "kv/registrations.h"
#include "kv/role.h"

namespace kvmend::kv {

class DecodeRole : public Role, private DecodeRoom::Host, private Registrations::Host {
 public:
  /// `seed`: where attempt and registration numbers start, so that a later manager on the same
  /// engine doesn't repeat those of an earlier one.
  DecodeRole(const Surroundings& around, std::uint64_t seed);

  // ---- from receivers; a handle whose room is over is ignored
  /// Opens the room, or fails the handle: kAlreadyExists (B1), kInvalidArgument (a session id),
  /// kResourceExhausted.
  void attach(const std::shared_ptr<RoomHandle>& handle, const std::vector<KvSource>& prefill);
  void init(const RoomHandle& handle);
  void set_pages(const RoomHandle& handle, std::vector<wire::KvPages> pages,
                 std::uint64_t prefix_tokens);
  void abort(const RoomHandle& handle, Status why);

  // ---- Role
  void on_message(const Peer& from, wire::KvMessage message) override;
  void on_peer_incarnation(const std::string& session_id, Incarnation now) override;
  [[nodiscard]] Incarnation known_incarnation(const std::string& session_id) const override;
  void on_peer_died(const std::string& session_id, Incarnation dead) override;
  void on_grant_used(RoomId room, std::uint32_t attempt) override;
  void on_grant_expired(RoomId room, std::uint32_t attempt, std::uint64_t landed) override;
  void on_session_usable(const std::string& session_id) override;
  void on_session_refused(const std::string& session_id) override;
  void close(const Status& why) override;
  void finish_close() override { holds_.close(); }

 private:
  void on_room_over(DecodeRoom& room, const Status& result, const std::vector<Peer>& tell) override;
  CoverageSums& coverage_sums() override { return coverage_sums_; }
  void on_registration(const Registration& registration) override;
  void on_registration_lost(const std::string& session_id) override;

  void handle(const Peer& from, const wire::KvRegister& message);
  void handle(const Peer& from, const wire::KvRegisterReply& message);
  void handle(const Peer& from, const wire::KvRoomMetadata& message);
  void handle(const Peer& from, const wire::KvRoomDone& message);
  void handle(const Peer& from, const wire::KvRoomStatus& message);
  void handle(const Peer& from, const wire::KvRoomAbort& message);
  void handle(const Peer& from, const wire::KvRoomAbortAck& message);

  Result<std::vector<Source>> check_attach(RoomId room, const std::vector<KvSource>& prefill) const;
  std::shared_ptr<DecodeRoom> find(const RoomHandle& handle) const;
  std::shared_ptr<DecodeRoom> find(RoomId room, std::uint32_t attempt) const;
  [[nodiscard]] RoomKey key(RoomId room, std::uint32_t attempt) const;
  [[nodiscard]] std::vector<std::shared_ptr<DecodeRoom>> all_rooms() const;

  const Surroundings& around_;
  std::uint32_t next_attempt_;
  Registrations registrations_;
  FinishedRooms finished_;
  AbortNotices notices_;
  PageHolds holds_;
  CoverageSums coverage_sums_;
  std::unordered_map<RoomId, std::shared_ptr<DecodeRoom>> rooms_;
};

}  // namespace kvmend::kv
