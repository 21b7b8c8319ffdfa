// The prefill side of a manager: registered decode engines, announced rooms, live rooms, and how
// the others ended. Loop thread.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "kv/abort_notices.h"
#include "kv/announced_rooms.h"
#include "kv/finished_rooms.h"
#include "kv/page_holds.h"
#include "kv/peer_layouts.h"
#include "kv/prefill_room.h"
#include "kv/role.h"

namespace kvmend::kv {

class PrefillRole : public Role, private PrefillRoom::Host {
 public:
  explicit PrefillRole(const Surroundings& around);

  // ---- from senders; a handle whose room is over is ignored
  /// Opens the room, or fails the handle: kAlreadyExists (B1), kResourceExhausted.
  void attach(const std::shared_ptr<RoomHandle>& handle, std::string only_decode);
  void init(const RoomHandle& handle, std::uint32_t num_pages,
            std::optional<std::uint32_t> aux_index);
  void send(const RoomHandle& handle, SourceChunk chunk);
  void on_gate_open(const RoomHandle& handle);
  void abort(const RoomHandle& handle, Status why);

  // ---- Role
  void on_message(const Peer& from, wire::KvMessage message) override;
  void on_peer_incarnation(const std::string& session_id, Incarnation now) override;
  [[nodiscard]] Incarnation known_incarnation(const std::string& session_id) const override;
  void on_peer_died(const std::string& session_id, Incarnation dead) override;
  void on_grant_expired(RoomId /*room*/, std::uint32_t /*attempt*/,
                        std::uint64_t /*landed*/) override {}
  void close(const Status& why) override;
  void finish_close() override;

 private:
  void on_room_failing(PrefillRoom& room, const wire::KvRoomAbort& message,
                       const Peer& decode) override;
  ParkLimits& park_limits() override { return park_limits_; }
  void on_room_draining(PrefillRoom& room, const std::vector<Peer>& peers) override;
  void on_drained(PrefillRoom& room, const Peer& peer) override;
  void on_room_over(PrefillRoom& room, const Status& result) override;

  void handle(const Peer& from, wire::KvRegister message);
  void register_peer(const Peer& from, const wire::KvRegister& message);
  void handle(const Peer& from, wire::KvRoomMetadata message);
  void handle(const Peer& from, const wire::KvRoomStatus& message);
  void handle(const Peer& from, const wire::KvRoomAbort& message);
  void handle(const Peer& from, const wire::KvRoomAbortAck& message);
  template <class Other>
  void handle(const Peer& from, const Other& message);

  void announce(Announcement announcement);
  void refuse(const Peer& to, const wire::KvRoomMetadata& metadata, const Status& why);
  /// Tells decode where its room stands: the answer to its metadata.
  void answer(const Peer& to, const wire::KvRoomMetadata& metadata, KvStatus status);
  std::shared_ptr<PrefillRoom> find(const RoomHandle& handle) const;
  std::shared_ptr<PrefillRoom> find(RoomId room) const;
  void arm_expiry();
  void expire_announced();

  const Surroundings& around_;
  PeerLayouts peers_;
  /// Registrations in the name of an address where somebody else is known: they count when that
  /// process has answered there. One for each address, at most config::kMaxKvClaims.
  struct Claim {
    Peer from;
    wire::KvRegister message;
  };
  std::map<std::string, Claim> claims_;
  AnnouncedRooms announced_;
  FinishedRooms finished_;
  AbortNotices notices_;
  PageHolds holds_;
  ParkLimits park_limits_;
  std::unordered_map<RoomId, std::shared_ptr<PrefillRoom>> rooms_;
  env::ScopedTimer expiry_timer_;
};

}  // namespace kvmend::kv
