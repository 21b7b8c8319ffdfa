// The sender's end of a link: what one receiver may and can read of our memory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "memory/pool_registry.h"
#include "transport/local/board.h"
#include "transport/local/fd_loop.h"
#include "transport/local/link_ring.h"
#include "transport/local/link_socket.h"
#include "transport/local/peer_process.h"

namespace kvmend::transport::local {

/// A pool that the receiver has mapped.
struct SharedSegment {
  const std::byte* base = nullptr;
  std::uint64_t bytes = 0;
  std::uint32_t id = 0;
};

/// Loop thread.
class TargetLink {
 public:
  struct Events {
    std::function<void(TargetLink&)> on_hello;  ///< `address` is known now
    std::function<void(TargetLink&)> on_ready;
    std::function<void(TargetLink&)> on_closed;  ///< destroy it, later
    std::function<void(TargetLink&, const Status&)> on_dead;
  };

  /// Checks that the other side belongs to our user; `nonce` (random) is what it must read to
  /// prove access. Errors: kPermissionDenied, kUnavailable.
  static Result<std::unique_ptr<TargetLink>> accept(FdLoop& fds, UniqueFd fd, uid_t uid,
                                                    Board& board, std::uint64_t nonce,
                                                    Events events);

  [[nodiscard]] const std::string& address() const { return address_; }
  [[nodiscard]] pid_t pid() const { return pid_; }
  /// The receiver has answered: it reads any memory of ours (`foreign`), or pools only.
  [[nodiscard]] bool ready() const { return ready_; }
  [[nodiscard]] bool foreign() const { return foreign_; }
  [[nodiscard]] bool usable() const { return ready_ && (foreign_ || !shared_.empty()); }
  /// The pool that holds [at, at + length) and is mapped over there, or null. `hint` makes runs of
  /// lookups cheap; start it at 0.
  [[nodiscard]] const SharedSegment* find(const std::byte* at, std::uint64_t length,
                                          std::size_t& hint) const;
  [[nodiscard]] const PeerProcess* process() const { return process_ ? &*process_ : nullptr; }
  [[nodiscard]] const PeerBoard* board() const { return board_.get(); }

  /// Ends the link, as if the other side had: `on_closed` comes, and its descriptor is free.
  void close();

  LinkRing& ring() { return ring_; }
  bool put(std::uint64_t lane, Bytes frame) { return ring_.put(lane, frame, fd_.get()); }

  /// Shows what isn't shown yet and retires what isn't there any more.
  void show(const std::vector<std::shared_ptr<memory::PoolSegment>>& pools);

 private:
  TargetLink(UniqueFd fd, pid_t pid, Board& own, std::uint64_t nonce, Events events);
  void on_readable();
  bool on_message(Received& received);
  bool on_hello(Received& received);
  void show_next();

  UniqueFd fd_;
  pid_t pid_;
  const Board& own_;
  LinkRing ring_;
  Events events_;
  std::string address_;
  std::optional<PeerProcess> process_;
  std::unique_ptr<PeerBoard> board_;
  std::unique_ptr<std::uint64_t> nonce_;
  bool ready_ = false;
  bool foreign_ = false;
  bool closed_ = false;
  std::vector<std::shared_ptr<memory::PoolSegment>> pools_;  // as of the last `show`
  std::vector<std::uint64_t> asked_;                         // shown, by pool id
  std::size_t unanswered_ = 0;
  std::vector<SharedSegment> shared_;  // mapped over there
  FdLoop* fds_ = nullptr;
  FdWatch link_watch_;
  FdWatch process_watch_;
};

}  // namespace kvmend::transport::local
