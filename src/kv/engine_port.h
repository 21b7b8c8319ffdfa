// What the KV manager needs of an engine, and nothing else: tests bring a fake one, and engines
// that aren't ours an adapter.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/address.h"
#include "base/bytes.h"
#include "base/time.h"
#include "env/event_loop.h"
#include "kv/room_events.h"
#include "kvmend/ids.h"
#include "kvmend/memory.h"
#include "kvmend/status.h"
#include "memory/grant_table.h"
#include "memory/quarantine.h"
#include "transport/chunk.h"

namespace kvmend::session {
struct TransferGroup;
}  // namespace kvmend::session

namespace kvmend::kv {

/// News from the engine. Loop thread.
class PortObserver {
 public:
  virtual ~PortObserver() = default;
  /// A message of a peer's KV manager. `from`: the session id where that engine listens, or "".
  virtual void on_message(const std::string& from, Incarnation sender, Bytes body) = 0;
  /// `now` answers at `session_id`; `before` is unset when the session to it is a new one (which
  /// doesn't mean that nobody answered there earlier).
  virtual void on_peer_incarnation(const std::string& session_id, Incarnation before,
                                   Incarnation now) = 0;
  /// The process that was `incarnation` there has died, by the kernel's word.
  virtual void on_peer_died(const std::string& session_id, Incarnation incarnation) = 0;
  /// The session takes traffic again, if only on trial: rooms that waited for it go on.
  virtual void on_session_usable(const std::string& /*session_id*/) {}
  /// The host of a blacklisted session refuses connections from now on: who waits for it may have
  /// less time left (`Blacklisted::park_until`).
  virtual void on_session_refused(const std::string& /*session_id*/) {}
  /// The engine goes down; messages can still be sent, but nothing is called afterwards.
  virtual void on_shutdown(const Status& why) = 0;
  /// The first bytes under the grant are here; only where grants are checked. No grant may be
  /// issued or ended in it.
  virtual void on_grant_used(RoomId room, std::uint32_t attempt) = 0;
  /// The grant has ended by its time; `landed`: bytes, by then.
  virtual void on_grant_expired(RoomId room, std::uint32_t attempt, std::uint64_t landed) = 0;
};

/// What a write cost until its end.
struct WriteCost {
  std::uint32_t retries = 0;  ///< frames that were sent again
  std::uint64_t bytes = 0;    ///< acknowledged; all of them if it ended well
};

/// One batch of pieces into a peer's pages.
struct Write {
  Address peer;
  Incarnation target;  ///< fails with kPeerRestarted when another one answers
  GrantId grant;
  bool checksum = false;
  Time deadline = kForever;
  std::vector<transport::Piece> pieces;
  /// Shared by writes that go out together or wait together (session/transfer_state.h), all begun
  /// in one turn of the loop. Null: alone.
  std::shared_ptr<session::TransferGroup> group;
  /// Runs at most once, before `on_done`, when the first of its bytes is about to leave; never from
  /// inside `write`. A write that waits for its session hasn't begun.
  std::move_only_function<void()> on_begun;
  /// Runs once, on the loop thread, never from inside `write`; possibly from inside `cancel`. The
  /// local pages aren't read any more then, unless it failed and the port's
  /// LandingRules::failed_writes_rest is false.
  std::move_only_function<void(const Status&, const WriteCost&)> on_done;
};

/// A session that takes no request traffic now.
struct Blacklisted {
  Status reason;
  bool refuses = false;        ///< requests end at once (the fail-fast policy); else they may wait
  bool trial = false;          ///< its first transfers and its messages go through again
  Time park_until = kForever;  ///< how long a request that begins to wait now may do so
};

/// Names a write that runs; 0 is never one.
using WriteId = StrongId<struct WriteTag>;

/// Loop thread throughout, except `loop` (its own rules), `incarnation` and `session_id`.
class EnginePort {
 public:
  virtual ~EnginePort() = default;

  [[nodiscard]] virtual env::EventLoop& loop() = 0;
  [[nodiscard]] virtual Incarnation incarnation() const = 0;
  [[nodiscard]] virtual std::string session_id() const = 0;

  /// OK, or kShuttingDown: the engine goes down.
  [[nodiscard]] virtual Status admits() const = 0;

  /// What the ends of grants and of writes prove here. Never changes.
  [[nodiscard]] virtual memory::LandingRules landing() const { return {}; }
  /// Whether nothing of the writes that have failed under `grant` of the process `target` goes on:
  /// a port may know more than its rules say.
  [[nodiscard]] virtual bool rests(Incarnation /*target*/, GrantId /*grant*/) const {
    return landing().failed_writes_rest;
  }
  /// Makes sure that nothing which `peer` has begun lands here, nor anything it begins later under
  /// a grant issued before, and that nothing we have begun reads or writes any more: by destroying
  /// this side's endpoint (the peer makes a new one). `done` runs later, on the loop thread, when
  /// that is certain. Writes under way between the two fail. False: it can't (`done` isn't kept).
  [[nodiscard]] virtual bool fence(const Address& /*peer*/,
                                   std::move_only_function<void()> /*done*/) {
    return false;
  }

  /// At most one observer; nullptr ends it.
  virtual void set_observer(PortObserver* observer) = 0;

  /// A registered region that contains the range, if there is one.
  [[nodiscard]] virtual const memory::Region* find_region(const void* base,
                                                          std::uint64_t length) const = 0;
  /// Registers with Access::kNone. Errors as of Engine::register_memory.
  virtual Result<RegionRef> register_memory(void* base, std::uint64_t length, MemoryKind kind) = 0;
  /// Where grants aren't checked but failed writes rest: once it returns, no write from or into the
  /// range goes on.
  virtual Status unregister_memory(void* base) = 0;

  virtual Result<GrantId> issue_grant(memory::Grant grant) = 0;
  /// False when it wasn't live. After this returns no byte lands under the grant.
  virtual bool end_grant(GrantId grant, memory::GrantEnd how) = 0;
  /// Bytes that have landed per component; nothing when the grant isn't live.
  [[nodiscard]] virtual std::optional<std::vector<std::uint64_t>> landed_bytes(
      GrantId grant) const = 0;

  /// Starts a write; its result comes as `on_done`.
  virtual WriteId write(Write write) = 0;
  /// Ends a write with `why` unless it was over already.
  virtual void cancel(WriteId write, const Status& why) = 0;

  /// Reliable and in order per pair of incarnations; lost when the session is given up. `target`
  /// set: only that process gets it. `key` names what it says: an earlier message of that key that
  /// hasn't left is replaced. Errors: kResourceExhausted, kPeerRestarted.
  virtual Status send(const Address& to, Incarnation target, std::string_view body,
                      std::string key) = 0;

  /// Set while the peer's session is blacklisted.
  [[nodiscard]] virtual std::optional<Blacklisted> blacklisted(const Address& peer) const = 0;

  /// Whom to report rooms to; null: nobody.
  [[nodiscard]] virtual RoomEvents* room_events() { return nullptr; }

  /// Where peers' engines reach the one that moves the pages, if that isn't kvmend's; else "".
  /// Managers with one and managers without refuse each other.
  [[nodiscard]] virtual std::string_view data_session() const { return {}; }
  /// The `data_session` of the peer's process, which is about to register.
  virtual void on_data_session(const Address& /*peer*/, Incarnation /*incarnation*/,
                               const std::string& /*data_session*/) {}
  /// Who answered last at the peer's address, on a connection of ours; unset when nobody has.
  [[nodiscard]] virtual Incarnation proven_incarnation(const Address& /*peer*/) const { return {}; }
  /// A process has registered its layout here in the peer's name: a reason to ask who answers
  /// there (which comes as `on_peer_incarnation`) and to trust its session again.
  virtual void on_peer_registered(const Address& /*peer*/, Incarnation /*incarnation*/) {}
};

}  // namespace kvmend::kv
