// The transport interface: lanes, and what makes them. A lane is one connection of a session with
// frames in both directions; sessions are built from lanes and know nothing else of a transport.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "base/address.h"
#include "base/bytes.h"
#include "env/event_loop.h"
#include "env/network.h"
#include "kvmend/ids.h"
#include "kvmend/status.h"
#include "memory/grant_table.h"
#include "memory/region_table.h"
#include "transport/chunk.h"
#include "transport/process_watch.h"
#include "transport/pull.h"
#include "wire/control.h"
#include "wire/frame.h"

namespace kvmend::transport {

class Lane;

/// Receives a lane's events, on the loop thread. Inside any call the receiver may close the lane;
/// it may destroy it only after the turn (see `Lane::close`).
class LaneObserver {
 public:
  virtual ~LaneObserver() = default;

  // As the initiator.
  virtual void on_hello_ack(Lane& /*lane*/, const wire::HelloAck& /*ack*/) {}
  virtual void on_hello_reject(Lane& /*lane*/, const wire::HelloReject& /*reject*/) {}
  /// The peer's word on a chunk, or ours where local memory was not accessible (origin caller).
  virtual void on_chunk_done(Lane& /*lane*/, const wire::AckEntry& /*result*/) {}
  /// One of the lane's remnants is over.
  virtual void on_remnant_over(Lane& /*lane*/) {}
  virtual void on_control_ack(Lane& /*lane*/, std::uint64_t /*seq*/) {}
  virtual void on_pong(Lane& /*lane*/, std::uint64_t /*nonce*/) {}

  // As the acceptor.
  virtual void on_hello(Lane& /*lane*/, const wire::Hello& /*hello*/) {}

  // Both.
  virtual void on_control(Lane& /*lane*/, std::uint64_t /*seq*/, Bytes /*body*/) {}
  /// The connection is broken (or the peer broke the protocol). The lane is closed already.
  virtual void on_lane_down(Lane& /*lane*/, const Status& /*why*/) {}
};

/// What an accepted lane may do for its initiator.
struct Serving {
  Incarnation initiator;
  bool control = false;             ///< control messages are welcome
  bool data = false;                ///< writes and reads are welcome
  std::uint32_t scratch_bytes = 0;  ///< a probe lane: has a scratch region of its own
};

/// Chunks that ended here before the peer answered: what is left of them may land later.
struct Remnants {
  std::size_t in_order = 0;   ///< before anything that is posted on the same lane afterwards
  std::size_t any_order = 0;  ///< at any moment until the peer answers
};

/// Loop thread. A lane starts with the handshake; other frames are refused before it is over.
class Lane {
 public:
  virtual ~Lane() = default;

  // ---- handshake, acceptor's side
  /// Answers the hello and opens the lane. Fills in the scratch fields of `ack` for probe lanes.
  virtual void accept(wire::HelloAck ack, const Serving& serving) = 0;
  /// Answers the hello with a refusal and closes once that has been sent (or soon).
  virtual void reject(const wire::HelloReject& reject) = 0;

  // ---- after the handshake
  /// Queues a control message; `seq` 0 is unreliable.
  virtual void send_control(std::uint64_t seq, Bytes body) = 0;
  virtual void send_control_ack(std::uint64_t seq) = 0;
  virtual void send_ping(std::uint64_t nonce) = 0;
  /// How many bytes a chunk of a long transfer may have, if they usually have `usual`.
  [[nodiscard]] virtual std::uint32_t longest_chunk(Opcode /*opcode*/, std::uint32_t usual) const {
    return usual;
  }
  /// Queues a chunk; its result comes as `on_chunk_done`.
  virtual void post(const Chunk& chunk) = 0;
  /// The chunk's memory isn't touched any more after this returns; no event follows for it. Returns
  /// true when nothing of it has been sent.
  virtual bool detach(ChunkId chunk) = 0;
  /// Chunks that were posted and not detached, and of which nothing has left; right until the lane
  /// is destroyed.
  [[nodiscard]] virtual std::vector<ChunkId> unsent() const = 0;
  /// Sends what is queued, as far as the connection takes it. Called once after a batch of posts.
  virtual void flush() = 0;

  /// Stops at once: nothing more is read or written, no event follows. Destroy it at the end of the
  /// turn at the earliest when inside one of its events.
  virtual void close() = 0;
  virtual void set_observer(LaneObserver* observer) = 0;

  [[nodiscard]] virtual const Address& peer() const = 0;
  [[nodiscard]] virtual Remnants remnants() const = 0;
  /// Bytes queued or sent and not yet answered, of chunks and remnants.
  [[nodiscard]] virtual std::uint64_t outstanding_bytes() const = 0;
  /// Control bytes queued here and not yet taken by the connection.
  [[nodiscard]] virtual std::size_t control_backlog() const = 0;
  /// Counts up while bytes reach the peer's host or come from it: a sign of life for the progress
  /// deadline. Not while only later bytes reach the host and an earlier chunk that arrived entirely
  /// isn't answered.
  [[nodiscard]] virtual std::uint64_t progress() const = 0;
  /// Counts up only while bytes come from the peer's process itself. A host acknowledges bytes for
  /// a process that is stopped, so on a lane that carries pings only this says that it lives.
  [[nodiscard]] virtual std::uint64_t received() const = 0;
  /// "tcp", "local", ...
  [[nodiscard]] virtual std::string_view transport_name() const = 0;
};

/// Counters of all lanes of an engine; loop thread.
struct LaneCounters {
  std::uint64_t payload_bytes_sent = 0;
  std::uint64_t payload_bytes_received = 0;
  std::uint64_t pulled_bytes_sent = 0;        ///< of these, copied by the peer itself (local)
  std::uint64_t pulled_bytes_received = 0;    ///< of these, copied from the peer's memory (local)
  std::uint64_t payload_bytes_discarded = 0;  ///< of refused, revoked and repeated frames
  std::uint64_t frames_refused = 0;           ///< data frames answered with an error
  std::uint64_t protocol_errors = 0;          ///< connections closed for malformed bytes
  std::uint64_t queued_read_slices = 0;       ///< of reads that wait for their turn, now
};

/// Receives accepted connections before their hello.
class AcceptObserver {
 public:
  virtual ~AcceptObserver() = default;
  virtual void on_inbound_lane(std::unique_ptr<Lane> lane) = 0;
  /// A connection waits and there is no descriptor for it. True: one was freed just now.
  virtual bool on_out_of_descriptors() { return false; }
};

/// What all lanes of an engine share. Loop thread.
struct LaneContext {
  env::EventLoop& loop;
  env::Random& random;
  memory::RegionTable& regions;
  memory::GrantTable& grants;
  LaneCounters& counters;
  PullPort* pulls = nullptr;      ///< where the local transport is available
  std::uint64_t stage_below = 0;  ///< TcpOptions::stage_below_bytes
};

/// Makes lanes. One per engine. Loop thread.
class Transport {
 public:
  virtual ~Transport() = default;
  /// Starts to connect; sends `hello` as the first frame. The outcome comes as `on_hello_ack`,
  /// `on_hello_reject` or `on_lane_down`. A shortage of a local resource is returned at once.
  virtual Result<std::unique_ptr<Lane>> connect(const Address& to, const wire::Hello& hello,
                                                LaneObserver* observer) = 0;
  /// Accepts lanes at `at` (port 0: any free one); returns the real address.
  virtual Result<Address> listen(const Address& at, AcceptObserver* observer) = 0;
  virtual void stop_listening() = 0;
  /// Runs `died` once when the process that introduced itself as `peer` has died. Null: nobody can
  /// tell here. `died` may not destroy the watch.
  virtual std::unique_ptr<ProcessWatch> watch_process(const wire::HostIdentity& /*peer*/,
                                                      std::function<void()> /*died*/) {
    return nullptr;
  }
};

/// How the composition root tells an engine which transport to use.
using TransportMaker = std::move_only_function<std::unique_ptr<Transport>(
    const LaneContext& context, env::Network& network, const env::StreamOptions& options)>;

}  // namespace kvmend::transport
