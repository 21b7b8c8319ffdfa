// A link's end of the rings: takes one of our board, frees it with the link, and rings the bell.
#pragma once

#include <optional>

#include "transport/local/board.h"
#include "transport/local/link_socket.h"

namespace kvmend::transport::local {

/// Loop thread. The board must outlive it.
class LinkRing {
 public:
  explicit LinkRing(Board& board) : board_(board), own_(board.take_ring()) {}
  ~LinkRing() {
    if (own_) board_.give_ring(*own_);
  }
  LinkRing(const LinkRing&) = delete;
  LinkRing& operator=(const LinkRing&) = delete;

  /// How hellos and welcomes name our ring.
  [[nodiscard]] std::uint32_t number() const {
    return own_ ? static_cast<std::uint32_t>(*own_) + 1 : 0;
  }
  /// The peer has named its ring. `peer` must outlive this.
  void connect(const PeerBoard& peer, std::uint32_t number) {
    if (!own_ || number == 0 || number > kRings) return;
    peer_ = &peer;
    pair_.emplace(board_.ring(*own_), peer.ring(number - 1));
  }
  void disconnect() { pair_.reset(); }

  /// Puts a frame where a peer that is awake finds it. False: send it another way.
  bool put(std::uint64_t lane, Bytes frame, int link) {
    if (!pair_ || !peer_->is_awake() || !pair_->put(lane, frame)) return false;
    if (peer_->is_awake()) return true;
    LinkMessage bell;  // it has gone to sleep meanwhile
    bell.kind = LinkKind::kBell;
    static_cast<void>(send_message(link, bell));  // a full link is readable: its end wakes up
    return true;
  }
  [[nodiscard]] bool ready() const { return pair_ && pair_->ready(); }
  std::optional<RingFrame> take() { return pair_ ? pair_->take() : std::nullopt; }

 private:
  Board& board_;
  std::optional<std::size_t> own_;
  const PeerBoard* peer_ = nullptr;
  std::optional<RingPair> pair_;
};

}  // namespace kvmend::transport::local
