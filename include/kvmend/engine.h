// The transfer engine: registers memory, moves bytes between it and peers' memory, and keeps its
// sessions alive.
#pragma once

#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvmend/ids.h"
#include "kvmend/memory.h"
#include "kvmend/options.h"
#include "kvmend/status.h"
#include "kvmend/transfer.h"

namespace kvmend {

/// One transition of a session's state, for people to look at.
struct SessionTransition {
  double seconds_ago = 0;
  std::string from;
  std::string to;
  std::string cause;
};

/// A session as it stands.
struct SessionInfo {
  std::string session_id;
  std::string state;  ///< connecting, healthy, suspect, failed, probing, retired
  Incarnation incarnation;
  std::uint64_t epoch = 0;
  std::uint32_t lanes = 0;
  std::string transport;
  std::uint64_t queued_transfers = 0;  ///< admitted and not over, or parked
  std::uint64_t pair_parked = 0;       ///< of them: wait for another session of their pair
  std::string pair_waits_for;          ///< the blacklisted one the first of these waits for, or ""
  std::uint64_t outstanding_bytes = 0;
  std::uint64_t bytes_written = 0;
  std::uint64_t bytes_read = 0;
  std::uint64_t transfers_ok = 0;
  std::uint64_t transfers_failed = 0;
  std::uint64_t retries = 0;        ///< chunks sent again
  std::uint64_t recoveries = 0;     ///< from blacklisted to usable
  double last_detect_seconds = 0;   ///< last sign of life -> blacklisted
  double last_recover_seconds = 0;  ///< blacklisted -> usable again
  std::string last_error;
  std::vector<SessionTransition> history;
};

struct EngineStats {
  std::uint64_t bytes_sent = 0;
  std::uint64_t bytes_received = 0;
  std::uint64_t local_bytes_sent = 0;      ///< of bytes_sent: by the local transport
  std::uint64_t local_bytes_received = 0;  ///< of bytes_received: the same
  std::uint64_t bytes_discarded = 0;       ///< arrived for refused or revoked frames
  std::uint64_t frames_refused = 0;
  std::uint64_t protocol_errors = 0;
  std::uint64_t transfers_ok = 0;
  std::uint64_t transfers_failed = 0;
  std::uint64_t retries = 0;
  std::uint64_t recoveries = 0;
  std::uint64_t probes_ok = 0;
  std::uint64_t probes_failed = 0;
  std::uint64_t regions = 0;
  std::uint64_t registered_bytes = 0;
  std::uint64_t inbound_lanes = 0;
  std::uint64_t grants = 0;
  std::uint64_t notifications_dropped = 0;  ///< nobody fetched them in time
  std::uint64_t contained_exceptions = 0;   ///< of the process: what memory ran out for
};

/// All methods may be called from any thread; none may be called from a transfer's `on_done`
/// except `submit`. An engine owns one thread.
class Engine {
 public:
  /// Starts an engine and its listener. Errors: kInvalidArgument (an option; names it and its
  /// range), kPermissionDenied (an address beyond loopback without `insecure`), kResourceExhausted
  /// (the port is taken).
  [[nodiscard]] static Result<std::unique_ptr<Engine>> create(const EngineOptions& options = {});

  virtual ~Engine() = default;  ///< shuts down with the options' grace

  /// How peers name this engine: "host:port", IPv6 in brackets.
  [[nodiscard]] virtual const std::string& session_id() const = 0;
  [[nodiscard]] virtual Incarnation incarnation() const = 0;

  /// "http://127.0.0.1:9400" when `admin_listen` is set, else "".
  [[nodiscard]] virtual std::string admin_url() const = 0;

  /// Registers `length` bytes at `base`. Costs no page touch: memory is not pinned for tcp.
  /// Errors: kInvalidArgument (null, zero length), kAlreadyExists (overlap), kResourceExhausted.
  virtual Status register_memory(void* base, std::uint64_t length,
                                 MemoryKind kind = MemoryKind::kHost,
                                 Access access = Access::kReadWrite) = 0;
  /// All of them, or none: what was registered before the first error is taken back.
  virtual Status register_batch(std::span<const MemoryRange> ranges,
                                MemoryKind kind = MemoryKind::kHost,
                                Access access = Access::kReadWrite) = 0;
  /// Afterwards no peer and no transfer of ours touches the region: running transfers that use it
  /// end with kNotRegistered. Errors: kNotRegistered.
  virtual Status unregister_memory(void* base) = 0;

  /// Connects if need be, and (re)pins the session to the incarnation that answers: after
  /// kPeerRestarted this is how a user says that it has learnt the new process's addresses.
  /// Errors: those of connecting, kDeadlineExceeded.
  virtual Result<SessionInfo> open_session(std::string_view session_id,
                                           std::chrono::nanoseconds timeout) = 0;

  /// Starts a transfer. Slices are merged where they are contiguous on both sides; any number of
  /// them is accepted. Errors at once: kInvalidArgument (bad session id, no slice, zero length),
  /// kNotRegistered (a local address, or a remote one when the peer's regions are known),
  /// kShuttingDown. Everything else is the transfer's result.
  virtual Result<TransferHandle> submit(std::string_view session_id, Opcode opcode,
                                        std::span<const Slice> slices,
                                        TransferOptions options = {}) = 0;
  /// Checks two layouts once, so that transfers between them need page indices only. Both have the
  /// same number of buffers and the same page size. Errors: kInvalidArgument, kNotRegistered (a
  /// local buffer).
  virtual Result<PreparedHandle> prepare(std::string_view session_id, PageLayout local,
                                         PageLayout remote) = 0;
  /// Moves page local_pages[i] of every buffer to (or from) page remote_pages[i]. Runs of pages are
  /// merged. Errors: kInvalidArgument (lists of different lengths, empty), kOutOfRange (names the
  /// index), else those of `submit`. Submitting takes a few nanoseconds a page and buffer.
  virtual Result<TransferHandle> submit_pages(const PreparedHandle& prepared, Opcode opcode,
                                              std::span<const std::uint32_t> local_pages,
                                              std::span<const std::uint32_t> remote_pages,
                                              TransferOptions options = {}) = 0;
  /// submit + wait.
  virtual Status transfer(std::string_view session_id, Opcode opcode, std::span<const Slice> slices,
                          TransferOptions options = {}) = 0;

  /// A control and a data probe of the peer, now, over connections of their own. OK: usable.
  virtual Status probe(std::string_view session_id, std::chrono::nanoseconds timeout) = 0;

  /// `open_session` and `probe` for callers that mustn't block, or that ask many peers at once: the
  /// future is ready within `timeout`, and gives kShuttingDown when the engine ends meanwhile.
  virtual std::future<Result<SessionInfo>> start_open_session(std::string_view session_id,
                                                              std::chrono::nanoseconds timeout) = 0;
  virtual std::future<Status> start_probe(std::string_view session_id,
                                          std::chrono::nanoseconds timeout) = 0;

  /// The regions that a peer opened to raw access (address, length), in the order of their
  /// registration; one that takes the place of an unregistered one stands in its place.
  virtual Result<std::vector<std::pair<std::uint64_t, std::uint64_t>>> peer_regions(
      std::string_view session_id, std::chrono::nanoseconds timeout) = 0;

  /// Sends a notification without data. Errors as those of a transfer.
  virtual Status notify(std::string_view session_id, const Notification& notification,
                        std::chrono::nanoseconds timeout) = 0;
  /// Notifications that arrived since the last call, in order per peer.
  virtual std::vector<Notification> take_notifications() = 0;

  [[nodiscard]] virtual std::vector<SessionInfo> sessions() const = 0;
  [[nodiscard]] virtual EngineStats stats() const = 0;

  /// Admits nothing new, waits up to `grace` for what runs, fails the rest with kShuttingDown,
  /// tells the peers and stops the thread. Idempotent.
  virtual void shutdown(std::chrono::nanoseconds grace) = 0;
};

}  // namespace kvmend
