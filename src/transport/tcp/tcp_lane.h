// A lane over one byte stream.
#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/config.h"
#include "base/time.h"
#include "env/event_loop.h"
#include "env/network.h"
#include "memory/grant_table.h"
#include "memory/region_table.h"
#include "transport/lane.h"
#include "transport/tcp/lane_reader.h"
#include "transport/tcp/lane_writer.h"
#include "wire/checksum.h"

namespace kvmend::transport::tcp {

class TcpLane final : public Lane, private env::StreamHandler, private FrameSink, private PullSink {
 public:
  /// The initiator's end: `hello` is sent once connected. `stream` is set by `attach`.
  TcpLane(LaneContext context, const wire::Hello& hello, LaneObserver* observer);
  /// The acceptor's end: waits for a hello.
  TcpLane(LaneContext context, std::unique_ptr<env::Stream> stream);
  ~TcpLane() override;

  void attach(std::unique_ptr<env::Stream> stream) { stream_ = std::move(stream); }
  env::StreamHandler* as_handler() { return this; }

  void accept(wire::HelloAck ack, const Serving& serving) override;
  void reject(const wire::HelloReject& reject) override;
  void send_control(std::uint64_t seq, Bytes body) override;
  void send_control_ack(std::uint64_t seq) override;
  void send_ping(std::uint64_t nonce) override;
  void post(const Chunk& chunk) override;
  bool detach(ChunkId chunk) override;
  [[nodiscard]] std::vector<ChunkId> unsent() const override { return writer_.unsent(); }
  /// Those that are copied may be long; a frame of the stream would hold up what is urgent.
  [[nodiscard]] std::uint32_t longest_chunk(Opcode opcode, std::uint32_t usual) const override {
    const bool copied = opcode == Opcode::kWrite ? last_write_copied_ : last_read_copied_;
    return copied ? std::max(usual, config::kLongPullBytes) : usual;
  }
  void flush() override;
  void close() override;
  void set_observer(LaneObserver* observer) override { observer_ = observer; }
  [[nodiscard]] const Address& peer() const override { return peer_; }
  [[nodiscard]] Remnants remnants() const override;
  [[nodiscard]] std::uint64_t outstanding_bytes() const override { return outstanding_; }
  [[nodiscard]] std::size_t control_backlog() const override { return writer_.urgent_bytes(); }
  [[nodiscard]] std::uint64_t progress() const override;
  [[nodiscard]] std::uint64_t received() const override { return bytes_in_; }
  [[nodiscard]] std::string_view transport_name() const override {
    return pull_sender_ && pull_sender_->ready() ? "local" : "tcp";
  }

 private:
  enum class State : std::uint8_t {
    kConnecting,
    kAwaitHello,
    kAwaitAnswer,
    kOpen,
    kRejecting,
    kClosed
  };

  // A payload that is arriving.
  struct Incoming {
    wire::FrameHeader header{};
    GrantId grant;
    std::uint64_t removals = 0;  // of the region table when the places were resolved
    bool reading = false;        // the answer to our own read
    bool scratch = false;
    bool detached = false;
    bool repeated = false;  // has landed before: read past, answered again
    std::uint64_t checksum = 0;
    wire::AckEntry result;
  };
  // A write of ours that isn't answered.
  struct PendingWrite {
    Chunk chunk;
    bool pulled = false;
    bool sent = false;  // its frame has left entirely
  };
  // What is left of a write that ended before it was answered.
  struct Remnant {
    std::uint32_t bytes = 0;
    bool pulled = false;
  };
  // How a write's bookkeeping ends.
  enum class WriteEnd : std::uint8_t { kAnswered, kUnsent, kLeft };
  // A read of ours that isn't over.
  struct PendingRead {
    Chunk chunk;
    std::uint64_t received = 0;
    ChunkId loan;        // what we copy from, or have copied from
    bool asked = false;  // for a loan
    bool sent = false;   // its request has left
    bool corrupt = false;
    bool faulted = false;
  };
  // A read of the peer's that waits for its turn, or is being answered.
  struct ReadJob {
    ChunkId chunk;
    GrantId grant;
    std::vector<wire::WireSlice> slices;
    std::uint64_t removals = 0;  // of the region table when the places were resolved
    std::uint32_t bytes = 0;
    bool checksum = false;
    bool scratch = false;
    bool zeroed = false;
    wire::AckEntry result;
  };

  // Where the bytes of a read lie.
  struct Source {
    std::vector<iovec> parts;
    std::uint64_t checksum = 0;
  };

  // env::StreamHandler
  void on_connected() override;
  void on_readable() override;
  void on_writable() override;
  void on_stream_error(Status status) override;

  // FrameSink
  Status on_frame(const wire::FrameHeader& header, Bytes body, std::vector<iovec>& into) override;
  bool payload_still_allowed() override;
  [[nodiscard]] bool places_stay() const override;
  void on_payload_bytes(std::span<const iovec> landed, std::size_t bytes) override;
  void on_payload_discarded(std::size_t bytes) override;
  void on_payload_fault() override;
  void on_payload_end() override;
  [[nodiscard]] bool closed() const override { return state_ == State::kClosed; }

  // PullSink
  void on_pulled(const PullRequest& request, const Status& result) override;
  void on_shared_frame(Bytes frame) override;
  void on_source_gone(const Status& why) override { fail(why); }

  Status on_write(const wire::FrameHeader& header, Bytes body, std::vector<iovec>& into);
  Status on_pull(const wire::FrameHeader& header, Bytes body);
  Status on_read_request(const wire::FrameHeader& header, Bytes body);
  Status on_read_data(const wire::FrameHeader& header, Bytes body, std::vector<iovec>& into);
  Status on_read_end(const wire::FrameHeader& header, Bytes body);
  Status on_acks(const wire::FrameHeader& header, Bytes body);
  Status on_handshake_frame(const wire::FrameHeader& header, Bytes body);
  Status on_acceptor_frame(const wire::FrameHeader& header, Bytes body, std::vector<iovec>& into);
  Status on_initiator_frame(const wire::FrameHeader& header, Bytes body, std::vector<iovec>& into);
  Status resolve(GrantId grant, Access want, std::span<const wire::WireSlice> slices,
                 std::uint32_t* argument, std::vector<iovec>& where, bool& scratch);
  Status resolve_scratch(std::span<const wire::WireSlice> slices, std::uint32_t* argument,
                         std::vector<iovec>& where);

  bool offer_pull(const Chunk& chunk, bool& sent);
  Status on_read_offer(const wire::FrameHeader& header, Bytes body);
  Status on_read_taken(const wire::FrameHeader& header, Bytes body);
  void on_read_pulled(const PullRequest& request, const Status& result);
  bool ask_for_loan(PendingRead& read);
  // Each direction of a lane's bytes has a name of its own.
  static std::uint64_t reads_of(std::uint64_t lane) { return lane ^ 0x9E3779B97F4A7C15ULL; }
  bool lend(ReadJob& job);
  void end_loan_of(const PendingRead& read);
  void send_taken(ChunkId loan, const Status& result);
  template <class Way>
  void send_small(const std::unique_ptr<Way>& way, std::vector<std::byte> frame);
  Status confirm(ReadJob& job, std::uint32_t* argument);
  void queue_reply_job(ReadJob job);
  void forget_slices(const ReadJob& job);
  void end_write(ChunkId chunk, WriteEnd how);
  void end_remnant(ChunkId chunk);
  void note_sent(ChunkId chunk);
  void note_put();
  void note_answer();
  void start_checksum();
  void push_ack(const wire::AckEntry& entry);
  void flush_acks();
  void flush_soon();
  [[nodiscard]] bool may_queue_read() const;
  Status locate(ReadJob& job, std::uint32_t* argument, Source& source);
  [[nodiscard]] std::vector<std::byte> read_end(const ReadJob& job);
  void start_next_reply();
  void end_reply();
  void finish_reply(ChunkId chunk);
  void check_reply_grant();
  void update_reading();
  void expect_more_after(std::size_t bytes);
  void finish_read(ChunkId chunk, wire::AckEntry result);
  void fail(const Status& why);
  void send_frame(wire::FrameType type, std::uint64_t id, Bytes body);

  LaneContext context_;
  LaneObserver* observer_;
  const bool initiator_;
  State state_;
  Address peer_;
  std::unique_ptr<env::Stream> stream_;
  std::vector<std::byte> hello_;
  LaneReader reader_;
  LaneWriter writer_;

  Serving serving_;
  std::vector<std::byte> scratch_;
  GrantId scratch_grant_;
  RegionRef scratch_ref_;

  Incoming incoming_;
  std::vector<wire::WireSlice> slices_;
  std::vector<wire::AckEntry> acks_;                  // to send at the end of this read
  std::vector<wire::AckEntry> received_;              // scratch of on_acks
  std::unordered_map<ChunkId, PendingWrite> writes_;  // posted, unanswered
  std::unordered_map<ChunkId, Remnant> remnants_;
  std::size_t pulled_remnants_ = 0;
  std::unordered_map<ChunkId, PendingRead> reads_;
  std::unordered_map<ChunkId, ChunkId> pulling_;  // by loan: reads of ours that are being copied
  std::deque<ReadJob> jobs_;                      // front: being answered when `answering_`
  std::unordered_map<ChunkId, ReadJob> lent_;     // by loan: the peer copies them itself
  std::size_t queued_slices_ = 0;                 // of `jobs_` and `lent_`
  bool answering_ = false;
  bool in_read_ = false;  // acknowledgements are flushed once, at its end
  bool want_write_ = false;
  bool want_read_ = true;
  std::uint64_t outstanding_ = 0;
  std::uint64_t bytes_in_ = 0;
  std::uint64_t bytes_out_ = 0;
  // While a chunk that left entirely waits for its answer, only the host's word on what had left by
  // the last answer is progress: a host goes on acknowledging for a process that is stopped.
  std::uint64_t sent_unanswered_ = 0;
  std::uint64_t believed_ = UINT64_MAX;          // position in the stream
  std::optional<wire::HostIdentity> peer_host_;  // where reads may be lent
  std::uint64_t name_ = 0;  // of a data lane; both ends know it, and nobody else
  std::unique_ptr<PullReceiver> pull_receiver_;
  std::unique_ptr<PullSender> pull_sender_;
  std::unique_ptr<PullReceiver> read_receiver_;  // the initiator's, from the first read on
  std::unique_ptr<PullSender> read_sender_;      // the acceptor's
  bool last_write_copied_ = false;               // by the peer, or so it was offered
  bool last_read_copied_ = false;                // by us
  std::vector<wire::PullSource> sources_;
  bool flush_scheduled_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::unique_ptr<wire::Checksum> sum_;  // of the payload that is arriving; most lanes need none
};

}  // namespace kvmend::transport::tcp
