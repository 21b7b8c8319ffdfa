// A transfer as the loop sees it: its pieces, how far it has come, and who wants to know.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/address.h"
#include "base/time.h"
#include "health/session_health.h"
#include "kvmend/ids.h"
#include "kvmend/transfer.h"
#include "transport/chunk.h"

namespace kvmend::session {

/// Which part of a transfer a chunk carries.
struct ChunkSpan {
  std::size_t first_piece = 0;
  std::uint32_t pieces = 0;
  std::uint32_t bytes = 0;
  std::uint64_t skip = 0;        ///< bytes of the first piece that belong to earlier chunks
  std::uint32_t mismatches = 0;  ///< times its checksum didn't match
  ChunkId id;                    ///< kept when it is sent again: a receiver counts its bytes once
  bool sent_before = false;      ///< over an epoch that was dropped: perhaps it has landed
};

struct TransferState;

/// Transfers of one request to several sessions of a pair: they are admitted together. While the
/// session of one is blacklisted, all of them wait; if one ends before that, all do. Complete
/// before the turn of the loop ends in which its first member is submitted. Loop thread.
struct TransferGroup {
  std::vector<std::weak_ptr<TransferState>> members;
  std::optional<Status> ended;  ///< how a member ended that had not been admitted
};

/// Filled by the submitter, then owned by the loop thread until `on_done` has run.
struct TransferState {
  TransferId id;
  Address peer;
  Opcode opcode = Opcode::kWrite;
  GrantId grant;
  Incarnation target;  ///< whom it was planned for; unset: the one the session is pinned to
  bool raw = false;    ///< pieces name peer addresses in `offset`, not regions yet
  bool checksum = false;
  bool urgent = false;
  Time submitted{};
  Time deadline = kForever;
  std::vector<transport::Piece> pieces;
  std::optional<Notification> notify;
  std::shared_ptr<TransferGroup> group;  ///< null: it goes alone
  /// Runs at most once on the loop thread, when its first chunk is about to leave; may be empty.
  std::move_only_function<void()> on_begun;
  /// Runs once on the loop thread, with the result.
  std::move_only_function<void(const Status&)> on_done;

  // ---- the session's bookkeeping
  std::uint64_t total_bytes = 0;
  std::uint64_t acked_bytes = 0;
  std::size_t next_piece = 0;     ///< first piece that isn't in a chunk entirely
  std::uint64_t next_offset = 0;  ///< bytes of it that are
  std::uint64_t cut_bytes = 0;    ///< of all chunks so far
  std::deque<ChunkSpan> resend;   ///< unacknowledged ones of a dropped epoch, and corrupted ones
  std::uint32_t chunks_in_flight = 0;
  std::uint32_t retries = 0;
  health::Ticket ticket;
  Time expires = kForever;  ///< the deadline, or the end of parking
  bool admitted = false;
  /// Addresses it names weren't in the peer's region table: which later table it waits for.
  std::uint64_t awaits_table = 0;
  bool held = false;         ///< counts against the limits
  bool queued = false;       ///< stands in the session's send queue, at `place`
  bool pair_parked = false;  ///< `place` is among those that wait for another session of the group
  bool done = false;
  std::list<std::shared_ptr<TransferState>>::iterator place;

  [[nodiscard]] bool has_unsent() const { return !resend.empty() || next_piece < pieces.size(); }
};

}  // namespace kvmend::session
