// The KV manager: moves the pages of one request's KV cache from a prefill engine into a decode
// engine's pools, room by room, and tells both sides how it ended and why.
//
//   prefill                                    decode
//   KvManager::create(engine, kPrefill, ...)   KvManager::create(engine, kDecode, ...)
//   KvSender s(manager, room);                 KvReceiver r(manager, {prefill session id}, room);
//   s.init(pages, aux_index);                  r.init();
//   s.send(first pages); s.send(the rest);     r.send_metadata(pages, aux_index);
//   while (s.poll() ...)                       while (r.poll() ...)
#pragma once

#include <array>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvmend/engine.h"
#include "kvmend/ids.h"
#include "kvmend/kv_layout.h"
#include "kvmend/memory.h"
#include "kvmend/status.h"

namespace kvmend {

enum class KvRole : std::uint8_t { kPrefill = 0, kDecode = 1 };

/// Where a room stands. Only forwards, except that everything but Success may become Failed;
/// Failed and Success are terminal. Several ranks' statuses combine by the minimum.
enum class KvStatus : std::uint8_t {
  kFailed = 0,
  kBootstrapping = 1,    ///< sender: decode's metadata isn't here yet; receiver: before `init`
  kWaitingForInput = 2,  ///< ready; no byte has moved
  kTransferring = 3,
  kSuccess = 4,  ///< receiver: the pages are complete and nobody can write them any more
};
[[nodiscard]] std::string_view kv_status_name(KvStatus status);
[[nodiscard]] constexpr bool is_terminal(KvStatus status) {
  return status == KvStatus::kFailed || status == KvStatus::kSuccess;
}
/// The status of a request that several ranks serve: the minimum. Empty: kBootstrapping.
[[nodiscard]] KvStatus combine_ranks(std::span<const KvStatus> ranks);

struct KvOptions {
  /// Until a room has ended, one way or the other. At most 7 days.
  std::chrono::nanoseconds room_deadline = std::chrono::seconds{60};
  /// How long prefill keeps a room that decode announced and no sender has claimed (less when the
  /// announced grant ends earlier).
  std::chrono::nanoseconds announced_ttl = std::chrono::seconds{60};
  /// Checksums over every frame of pages.
  bool checksum = false;
  /// How much of the kv pool's pages may wait for one blacklisted session, and for all of them
  /// together (0 to 1): beyond that, rooms of such a session fail at once, so that a dead decode
  /// can't starve the living ones. A prefill with one decode only may set both to 1.
  double parked_share_per_session = 0.25;
  double parked_share = 0.5;
  /// Only over transports that can't check grants (one-sided hardware, foreign engines): how much
  /// of the kv pool's pages (0 to 1) may wait for the proof that nothing writes or reads them any
  /// more. Beyond that new rooms fail at once with kResourceExhausted.
  double quarantine_share = 0.25;
  /// How long after its room's deadline a page without such a proof is given back all the same
  /// (counted and logged as "unproven"); 0: never. At most 7 days.
  std::chrono::nanoseconds quarantine_unproven_after{};
};

namespace kv {
class GateState;
}  // namespace kv

/// Holds a chunk back until its source pages are filled: a chunk that was sent with it isn't read
/// before it is opened. Any thread; may be opened from a device's stream callback
/// (cudaLaunchHostFunc), which is why it takes no lock for long and never calls user code.
class KvGate {
 public:
  KvGate();
  /// Idempotent. Chunks that waited are queued at once.
  void open();
  [[nodiscard]] bool is_open() const;

 private:
  friend class KvSender;
  std::shared_ptr<kv::GateState> state_;
};

/// Page indices of the state pools, one list per state component in layout order. Missing lists
/// and empty ones mean: nothing of that pool.
using KvStateIndices = std::vector<std::vector<std::uint32_t>>;

/// One prefill engine of a room, as decode's end of it sees it.
struct KvSource {
  std::string session;
  /// How many decode engines the prefill engine serves in this room, this one included. Its sender
  /// goes on once all of them have announced themselves, and succeeds once all have their pages.
  std::uint32_t destinations = 1;
  /// It writes nothing here (its bytes come from another rank); it only has to know of the room,
  /// so that its sender ends well once it has queued its last chunk.
  bool dummy = false;
};

/// What a room cost. Durations count until now, or until the room's end.
struct KvRoomMetrics {
  std::uint64_t bytes = 0;    ///< sender: acknowledged; receiver: landed, counted at the end
  std::uint64_t chunks = 0;   ///< sender: `send` calls
  std::uint64_t retries = 0;  ///< sender: frames sent again
  std::chrono::nanoseconds bootstrapping{};
  std::chrono::nanoseconds waiting{};
  std::chrono::nanoseconds transferring{};
  std::string reason;  ///< of a failure: Status::to_string()
};

struct KvManagerStats {
  std::uint64_t rooms = 0;            ///< live now
  std::uint64_t announced = 0;        ///< prefill: announced and unclaimed, now
  std::uint64_t announced_bytes = 0;  ///< memory they hold
  std::uint64_t peers = 0;            ///< registered counterparts, now
  std::uint64_t transfers = 0;        ///< in flight, now
  std::uint64_t rooms_succeeded = 0;  ///< totals from here on
  std::uint64_t rooms_failed = 0;
  std::uint64_t rooms_refused = 0;      ///< duplicates, and beyond a maximum
  std::uint64_t announced_refused = 0;  ///< beyond a maximum
  std::uint64_t announced_expired = 0;
  std::uint64_t registrations_refused = 0;  ///< layouts that can't be mapped
  std::uint64_t unknown_messages = 0;       ///< about rooms nobody knows
  std::uint64_t malformed_messages = 0;
  std::uint64_t late_messages = 0;        ///< about rooms that had ended
  std::uint64_t messages_repeated = 0;    ///< sent again because no answer came
  std::uint64_t bytes = 0;                ///< of rooms that succeeded
  std::uint64_t quarantined_rooms = 0;    ///< over, and their pages wait for a proof, now
  std::uint64_t quarantined_pages = 0;    ///< of the kv pool, now
  std::uint64_t quarantine_refused = 0;   ///< rooms, since too many pages waited
  std::uint64_t quarantine_released = 0;  ///< rooms whose proof came
  std::uint64_t quarantine_unproven = 0;  ///< rooms whose pages were given back without one
};

namespace kv {
class Core;
class Link;
class RoomHandle;
}  // namespace kv

/// One per engine and role at a time. All methods from any thread. Must be destroyed (or torn
/// down) before its engine; senders and receivers may outlive it.
class KvManager {
 public:
  /// Registers the layout's buffers with the engine, closed to raw access, unless they lie in
  /// regions that are registered already. Errors: kInvalidArgument (the layout or an option; names
  /// the value), those of Engine::register_memory, kShuttingDown.
  [[nodiscard]] static Result<std::unique_ptr<KvManager>> create(Engine& engine, KvRole role,
                                                                 KvLayout layout,
                                                                 KvOptions options = {});
  /// The same over any engine (kv/engine_port.h).
  explicit KvManager(std::shared_ptr<kv::Link> link) : link_(std::move(link)) {}
  ~KvManager();
  KvManager(const KvManager&) = delete;
  KvManager& operator=(const KvManager&) = delete;

  /// Ends every room with kShuttingDown, tells the peers, and takes back the regions registered
  /// here; afterwards nothing touches the pools. The engine goes on: a manager of the other role
  /// may follow. Blocks for a turn of the engine's loop. Idempotent.
  void teardown();

  [[nodiscard]] KvRole role() const;
  [[nodiscard]] const KvLayout& layout() const;
  [[nodiscard]] KvManagerStats stats() const;

 private:
  friend class KvSender;
  friend class KvReceiver;
  std::shared_ptr<kv::Link> link_;
};

/// Prefill's end of a room. Any thread, but `init` and `send` of one room from one at a time.
/// Once the status is terminal nothing reads the source pages any more (see `pages_released` for
/// the exception).
class KvSender {
 public:
  /// A second sender of a live room ends at once with kAlreadyExists; the first goes on.
  /// `decode_session` set: metadata from any other engine is refused.
  KvSender(KvManager& manager, RoomId room, std::string_view decode_session = {});
  ~KvSender();  ///< as `clear`
  KvSender(const KvSender&) = delete;
  KvSender& operator=(const KvSender&) = delete;

  /// How many pages all `send`s together will bring (as many as decode announces, or what fills
  /// those where its pages have another size), and the row of the aux pool. Errors:
  /// kInvalidArgument (twice), kOutOfRange (aux_index).
  Status init(std::uint32_t num_pages, std::optional<std::uint32_t> aux_index = std::nullopt);

  /// Queues a chunk: `pages` go to the next `pages.size()` destination pages of the room. The
  /// chunk that completes `num_pages` is the last: aux and `states` go with it. May be called
  /// before the metadata is here. Errors (the room goes on): kInvalidArgument (before `init`, more
  /// pages than announced, states too early), kOutOfRange (names page and pool size). The room's
  /// failure, if it has ended.
  /// `ready` set: the chunk (aux and states too) waits for it; later chunks go past it.
  Status send(std::span<const std::uint32_t> pages, const KvStateIndices& states = {},
              const KvGate* ready = nullptr);

  /// Tokens at the front that decode has already (`prefix_tokens` of its `send_metadata`): their
  /// pages aren't among those it announced. 0 while the status is kBootstrapping.
  [[nodiscard]] std::uint64_t prefix_tokens() const;
  /// The session id of the decode engine that announced the pages (of several: the last); "" while
  /// the status is kBootstrapping.
  [[nodiscard]] std::string decode_session() const;

  [[nodiscard]] KvStatus poll() const;  ///< never blocks
  /// Blocks until the room has ended or `timeout` has passed.
  KvStatus wait(std::chrono::nanoseconds timeout) const;
  /// Blocks until the status is at least `status`, the room has ended or `timeout` has passed.
  KvStatus wait_for(KvStatus status, std::chrono::nanoseconds timeout) const;

  /// Ends the room with kAborted and tells decode, which revokes the grant at once.
  void abort(std::string_view reason);
  /// Whether nothing reads the source pages any more. Over tcp and the local transport: the room
  /// has ended. Over a foreign engine whose failed writes may go on it may come later.
  [[nodiscard]] bool pages_released() const;
  /// The first cause of the failure; OK while the room hasn't failed.
  [[nodiscard]] Status failure() const;
  /// Gives the room number up. A room that hasn't ended is aborted.
  void clear();
  [[nodiscard]] KvRoomMetrics metrics() const;
  [[nodiscard]] RoomId room() const;

 private:
  std::shared_ptr<kv::Link> link_;
  std::shared_ptr<kv::RoomHandle> handle_;
};

/// Decode's end of a room. Any thread. Once the status is terminal nobody can write the
/// destination pages any more (the grants are closed before it is published; see `pages_released`
/// for the exception).
class KvReceiver {
 public:
  /// `prefill_sessions`: every prefill engine that writes into this room. A second receiver of a
  /// live room ends at once with kAlreadyExists; the first goes on.
  KvReceiver(KvManager& manager, std::vector<std::string> prefill_sessions, RoomId room);
  /// The same with what a prefill engine must know of each other's ranks. At least one isn't a
  /// dummy.
  KvReceiver(KvManager& manager, std::span<const KvSource> sources, RoomId room);
  /// The same for one; a template, so that `{a, b}` can only mean two sessions.
  template <std::convertible_to<std::string_view> Session>
  KvReceiver(KvManager& manager, const Session& prefill_session, RoomId room)
      : KvReceiver(manager,
                   std::vector<std::string>{std::string(std::string_view(prefill_session))}, room) {
  }
  ~KvReceiver();  ///< as `clear`
  KvReceiver(const KvReceiver&) = delete;
  KvReceiver& operator=(const KvReceiver&) = delete;

  void init();  ///< -> kWaitingForInput

  /// Announces where the room goes: KV pages in the order of the tokens, each at most once, the
  /// row of the aux pool, and pages of the state pools. `device_pages`: of the kKvDevice pool, in
  /// the same order. `prefix_tokens`: that decode has already; where tokens are dealt out among
  /// ranks a multiple of page_tokens * dcp_size, where prefill's pages are larger of their tokens.
  /// Called once. Errors (the room goes on): kInvalidArgument (twice, a page twice, no such pool),
  /// kOutOfRange (names page and pool size).
  Status send_metadata(std::span<const std::uint32_t> pages,
                       std::optional<std::uint32_t> aux_index = std::nullopt,
                       const KvStateIndices& states = {}, std::uint64_t prefix_tokens = 0,
                       std::span<const std::uint32_t> device_pages = {});

  [[nodiscard]] KvStatus poll() const;
  KvStatus wait(std::chrono::nanoseconds timeout) const;
  KvStatus wait_for(KvStatus status, std::chrono::nanoseconds timeout) const;

  /// Revokes the room's grants at once, ends it with kAborted and tells prefill.
  void abort(std::string_view reason);
  /// Whether every prefill engine has answered the failure, or is known to be another process.
  [[nodiscard]] bool abort_acknowledged() const;
  /// Whether the pages may be used for something else. Over tcp and the local transport: the room
  /// has ended, its revoked grant is the proof. Over one-sided hardware and foreign engines a
  /// failed room's pages stay quarantined until every engine that could write them has drained, is
  /// dead or is fenced off (KvOptions::quarantine_*).
  [[nodiscard]] bool pages_released() const;
  /// The names of the aux fields that prefill brings, once all its engines have taken our layout;
  /// before that, and without named fields, none.
  [[nodiscard]] std::vector<std::string> aux_fields() const;
  [[nodiscard]] Status failure() const;
  void clear();
  [[nodiscard]] KvRoomMetrics metrics() const;
  [[nodiscard]] RoomId room() const;

 private:
  std::shared_ptr<kv::Link> link_;
  std::shared_ptr<kv::RoomHandle> handle_;
};

}  // namespace kvmend
