// A transfer as the loop sees it: its pieces, how far it has come, and who wants to know.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/address.h"
#include "base/time.h"
#include "kvmend/ids.h"
#include "kvmend/transfer.h"
#include "transport/chunk.h"

namespace kvmend::session {

/// Filled by the submitter, then owned by the loop thread until `on_done` has run.
struct TransferState {
  TransferId id;
  Address peer;
  Opcode opcode = Opcode::kWrite;
  GrantId grant;
  Incarnation target;  ///< whom it was planned for; unset: the one the session is pinned to
  bool raw = false;    ///< pieces name peer addresses, not regions yet
  bool checksum = false;
  bool urgent = false;
  Time submitted{};
  Time deadline = kForever;
  std::vector<transport::Piece> pieces;
  std::uint64_t total_bytes = 0;
  std::optional<Notification> notify;
  /// Runs once on the loop thread, with the result.
  std::move_only_function<void(const Status&)> on_done;

  // ---- the session's bookkeeping
  std::size_t next_piece = 0;      ///< first piece that isn't in a chunk entirely
  std::uint64_t next_offset = 0;   ///< bytes of it that are
  std::uint64_t acked_bytes = 0;
  std::uint32_t chunks_in_flight = 0;
  std::uint32_t retries = 0;
  bool admitted = false;           ///< counted as in flight for the health's trial
  bool done = false;
  std::uint64_t notify_seq = 0;    ///< control message that carries the notification

  [[nodiscard]] bool all_sent() const { return next_piece == pieces.size(); }
};

}  // namespace kvmend::session
