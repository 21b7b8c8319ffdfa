// What both roles share: their surroundings, and how the core speaks to them. Loop thread.
#pragma once

#include <memory>
#include <string>

#include "base/address.h"
#include "kv/counters.h"
#include "kv/engine_port.h"
#include "kv/room_handle.h"
#include "kvmend/kv.h"
#include "wire/kv_messages.h"

namespace kvmend::kv {

/// A peer's engine process, as a message or a registration named it.
struct Peer {
  std::string session_id;
  Address address;
  Incarnation incarnation;
};

/// Names what a message says: the same for one that is only sent again.
[[nodiscard]] std::string said_by(const wire::KvMessage& message);

/// Lives as long as the core; the roles and rooms only refer to it.
struct Surroundings {
  EnginePort& port;
  const KvLayout& layout;
  const wire::KvLayout& described;
  const KvOptions& options;
  Counters& counters;

  [[nodiscard]] Time now() const { return port.loop().now(); }
  /// Encodes and sends. What can't be sent is logged by the caller or repeated later.
  Status send(const Peer& to, const wire::KvMessage& message) const {
    return port.send(to.address, to.incarnation, wire::encode_kv(message), said_by(message));
  }
  /// A room has ended: counts it, here and in the metrics. `live`: rooms that are left.
  void count_over(KvRole role, const RoomHandle& room, const Status& result,
                  std::size_t live) const;
  /// `live` rooms are in the role's table.
  void count_live(KvRole role, std::size_t live) const;
};

/// As the reference numbers ranks.
[[nodiscard]] constexpr std::uint32_t rank_number(const KvRank& rank) {
  return rank.tp_rank * (rank.pp_size * rank.cp_size) + rank.pp_rank * rank.cp_size + rank.cp_rank;
}

/// "peer restarted", in the words that users look for.
[[nodiscard]] Status peer_restarted(const std::string& session_id);
/// The same, or, when `now` (who answers there) is unset: it has died and nobody has followed yet.
[[nodiscard]] Status peer_gone(const std::string& session_id, Incarnation now);
/// A failure that the peer reported.
[[nodiscard]] Status reported_by(const std::string& session_id, Code code,
                                 const std::string& reason);
/// The text that travels to the peer.
[[nodiscard]] std::string reason_text(const Status& why);
/// The status message for a room that has ended with `result` (OK: Success).
[[nodiscard]] wire::KvRoomStatus status_message(RoomId room, std::uint32_t attempt,
                                                const Status& result);

class Role {
 public:
  virtual ~Role() = default;
  virtual void on_message(const Peer& from, wire::KvMessage message) = 0;
  virtual void on_peer_incarnation(const std::string& session_id, Incarnation now) = 0;
  /// The process that registered at or with us from there; unset: none.
  [[nodiscard]] virtual Incarnation known_incarnation(const std::string& session_id) const = 0;
  /// Proof of death: whatever waits for that process, and for no later one, ends.
  virtual void on_peer_died(const std::string& session_id, Incarnation dead) = 0;
  /// The first of the room's bytes are here.
  virtual void on_grant_used(RoomId /*room*/, std::uint32_t /*attempt*/) {}
  virtual void on_grant_expired(RoomId room, std::uint32_t attempt, std::uint64_t landed) = 0;
  /// The session isn't `failed` any more.
  virtual void on_session_usable(const std::string& /*session_id*/) {}
  /// It is, and its host refuses connections from now on.
  virtual void on_session_refused(const std::string& /*session_id*/) {}
  /// Ends every room with `why` and tells the peers.
  virtual void close(const Status& why) = 0;
  /// Called after `close`, once the pools are deregistered: nothing touches them any more, so rooms
  /// whose writes haven't reported back are over too. Nothing is called afterwards.
  virtual void finish_close() {}
};

}  // namespace kvmend::kv
