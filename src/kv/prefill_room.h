// One room on the prefill side: chunks in, writes out, the last word from decode. Loop thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "kv/announced_rooms.h"
#include "kv/finished_rooms.h"
#include "kv/gate.h"
#include "kv/park_limits.h"
#include "kv/repeat.h"
#include "kv/room_base.h"

namespace kvmend::kv {

/// What one `send` brought: checked against the local pools.
struct SourceChunk {
  std::uint32_t first = 0;  ///< position of the first page in the room
  std::vector<std::uint32_t> pages;
  bool last = false;
  std::vector<wire::KvPages> extra;       ///< aux and state, with the last chunk
  std::shared_ptr<const GateState> gate;  ///< set: don't read the pages before it is open

  [[nodiscard]] bool ready() const { return !gate || gate->is_open(); }
};

/// Everything in a room runs to completion, except writes: a failing room cancels those, and is
/// over once the last of them has let go of the source pages. Its status waits for that, unless the
/// engine's writes can't be stopped (memory/quarantine.h).
class PrefillRoom final : public RoomBase {
 public:
  class Host {
   public:
    virtual ~Host() = default;
    /// The room's failure is decided and `decode`, one of its destinations, must be told.
    virtual void on_room_failing(PrefillRoom& room, const wire::KvRoomAbort& message,
                                 const Peer& decode) = 0;
    /// Counts the source pages that writes hold, for the limit of those that wait.
    virtual ParkLimits& park_limits() = 0;
    /// The room has failed, but writes to `peers` are under way that can't be stopped: its status
    /// follows, its pages don't.
    virtual void on_room_draining(PrefillRoom& room, const std::vector<Peer>& peers) = 0;
    /// Nothing to that one is under way any more.
    virtual void on_drained(PrefillRoom& room, const Peer& peer) = 0;
    /// The room is over; its status follows as soon as this returns.
    virtual void on_room_over(PrefillRoom& room, const Status& result) = 0;
  };

  PrefillRoom(const Surroundings& around, Host& host, std::shared_ptr<RoomHandle> handle,
              std::string only_decode);

  /// A decode engine wants the room; the first one says how many must come. Errors, for that engine
  /// alone: kAlreadyExists (B1), kInvalidArgument (it says another number), the room's own failure.
  Status announce(Announcement announcement);
  void init(std::uint32_t num_pages, std::optional<std::uint32_t> aux_index);
  void send(SourceChunk chunk);
  /// A chunk that waited may be read now.
  void on_gate_open();

  void on_status(const Peer& from, const wire::KvRoomStatus& message);
  void on_abort(const Peer& from, const wire::KvRoomAbort& message);
  void on_peer_incarnation(const std::string& session_id, Incarnation now);
  /// Decode has started another attempt of the room: its word on this one got lost.
  void supersede(const Peer& from);
  void fail(Status why) override;
  /// Ends a failed room whose writes can't touch memory any more but haven't reported back.
  void give_up_writes();

  [[nodiscard]] bool serves(const Peer& peer, std::uint32_t attempt) const;
  [[nodiscard]] bool serves_other_attempt(const Peer& peer, std::uint32_t attempt) const;
  /// One key per decode attempt that the room has served.
  [[nodiscard]] std::vector<RoomKey> keys() const;
  /// Living decode engines to which writes that failed may still be under way.
  [[nodiscard]] std::vector<Peer> undrained() const;
  [[nodiscard]] bool draining() const { return draining_; }
  [[nodiscard]] Time deadline() const { return deadline_; }
  [[nodiscard]] std::uint64_t source_pages() const;

 private:
  struct Destination {
    Announcement to;
    std::vector<bool> written;  ///< by chunk
    std::size_t chunks_written = 0;
    std::size_t first_unwritten = 0;
    std::set<WriteId> writes;             ///< in flight
    std::vector<std::uint64_t> declared;  ///< acknowledged bytes per component of decode
    bool told_begun = false;              ///< it was told that its bytes are on their way
    bool done_sent = false;
    bool complete = false;   ///< decode said Success; a dummy: the last chunk is queued
    bool gone = false;       ///< don't tell it: it said so itself, or is another process now
    bool dead = false;       ///< is another process now
    bool undrained = false;  ///< a write that failed may go on: neither side's pages are free
    bool wants_ack = false;
    std::optional<Status> doubt;  ///< a write was refused; decode's reason should be near
    Repeat repeat;                ///< of KvRoomDone
  };

  Destination* find(const Peer& peer, std::uint32_t attempt);
  [[nodiscard]] bool all_here() const { return destinations_.size() == required_; }
  void pump_all();
  void pump(Destination& to);
  /// Whether `pages` more may wait for this decode engine, if they have to.
  [[nodiscard]] Status may_wait(const Destination& to, std::size_t pages) const;
  /// False when the chunk doesn't fit what decode announced (the room has failed then).
  bool write(Destination& to, std::size_t index_of_chunk);
  [[nodiscard]] std::shared_ptr<session::TransferGroup> group_of(std::size_t chunk);
  bool check_announced(const Destination& to);
  bool plan_chunk(Destination& to, const SourceChunk& chunk, Write& write,
                  std::vector<std::uint64_t>& bytes);
  void on_write_begun(std::size_t destination);
  void on_write_done(std::size_t destination, WriteId write, const Status& result,
                     const WriteCost& cost, const std::vector<std::uint64_t>& bytes,
                     std::uint32_t pages);
  void send_done_if_complete(Destination& to);
  void send_done(Destination& to);
  [[nodiscard]] Time next_due() const override;
  void on_due(Time now) override;
  [[nodiscard]] bool ended() const override { return ending_ || over_; }
  [[nodiscard]] std::string where_it_stands() const override;
  /// A write to it has ended with that.
  void note_drained(Destination& to, const Status& result) const;
  void finish_if_complete();
  void finish();

  Host& host_;
  const std::string only_decode_;
  std::vector<Destination> destinations_;
  // Decode engines; the first announcement says how many. 0: this rank brings nothing to anyone.
  std::size_t required_ = 1;
  std::optional<std::uint32_t> num_pages_;
  std::optional<std::uint32_t> aux_index_;
  std::vector<SourceChunk> chunks_;
  // One per chunk, of a room with several decode engines: its writes go out as one (case R11).
  std::vector<std::shared_ptr<session::TransferGroup>> groups_;
  bool all_queued_ = false;
  std::size_t in_flight_ = 0;
  std::optional<Status> ending_;  // first cause
  bool draining_ = false;         // the status is published, the pages are held
  bool over_ = false;
  Time doubt_until_ = kForever;
};

}  // namespace kvmend::kv
