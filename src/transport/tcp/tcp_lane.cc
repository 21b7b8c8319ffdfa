#include "transport/tcp/tcp_lane.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "base/config.h"
#include "base/log.h"
#include "base/sabotage.h"
#include "memory/guarded.h"
#include "transport/tcp/answers.h"

namespace kvmend::transport::tcp {

using wire::FrameType;

namespace {

// The token is random and an epoch's own; its lanes are numbered.
std::uint64_t name_of(const wire::Hello& hello) {
  std::uint64_t name = hello.lane_index;
  if (hello.token)
    for (const std::byte b : *hello.token)
      name = (name ^ static_cast<std::uint64_t>(b)) * 0x100000001B3ULL;  // FNV-1a
  return name;
}

}  // namespace

TcpLane::TcpLane(LaneContext context, const wire::Hello& hello, LaneObserver* observer)
    : context_(context),
      observer_(observer),
      initiator_(true),
      state_(State::kConnecting),
      reader_(*this, wire::kMaxHelloBytes) {
  writer_.set_stage_below(context.stage_below);
  wire::Hello own = hello;
  own.features |= wire::kFeatureLoans;
  if (context.pulls != nullptr && own.kind == wire::LaneKind::kData)
    own.host = context.pulls->identity();
  name_ = name_of(own);
  hello_ = wire::encode_hello(own);
}

TcpLane::TcpLane(LaneContext context, std::unique_ptr<env::Stream> stream)
    : context_(context),
      observer_(nullptr),
      initiator_(false),
      state_(State::kAwaitHello),
      peer_(stream->peer()),
      stream_(std::move(stream)),
      reader_(*this, wire::kMaxHelloBytes) {
  writer_.set_stage_below(context.stage_below);
  stream_->set_handler(this);
}

TcpLane::~TcpLane() = default;

// ---------------------------------------------------------------------------------- connection

void TcpLane::on_connected() {
  peer_ = stream_->peer();
  state_ = State::kAwaitAnswer;
  send_frame(FrameType::kHello, 0, hello_);
  flush();
}

void TcpLane::on_stream_error(Status status) {
  fail(status);
}

void TcpLane::fail(const Status& why) {
  if (state_ == State::kClosed) return;
  const bool rejecting = state_ == State::kRejecting;
  if (why.code() == Code::kProtocolError) ++context_.counters.protocol_errors;
  close();
  if (observer_ != nullptr && !rejecting) observer_->on_lane_down(*this, why);
}

void TcpLane::close() {
  state_ = State::kClosed;
  context_.counters.queued_read_slices -= std::exchange(queued_slices_, 0);
  stream_.reset();
  pull_receiver_.reset();
  pull_sender_.reset();
  read_receiver_.reset();
  read_sender_.reset();
}

std::uint64_t TcpLane::progress() const {
  if (!stream_) return bytes_in_;
  const std::uint64_t waiting = stream_->unacknowledged_bytes();
  return bytes_in_ + std::min(bytes_out_ > waiting ? bytes_out_ - waiting : 0, believed_);
}

void TcpLane::on_readable() {
  if (state_ == State::kClosed) return;
  in_read_ = true;
  LaneReader::Outcome outcome = reader_.pump(*stream_, config::kReadBudgetPerTurn);
  in_read_ = false;
  bytes_in_ += outcome.bytes;
  if (state_ == State::kClosed) return;
  if (!outcome.error.is_ok()) return fail(outcome.error);
  if (outcome.eof)
    return fail({Code::kConnectionReset, Origin::kLink,
                 fmt::format("{} closed the connection", peer_.to_string())});
  flush_acks();
  flush();
  expect_more_after(outcome.bytes);
}

// One small request after the other: each waits for the last one's answer.
void TcpLane::expect_more_after(std::size_t bytes) {
  if (state_ == State::kOpen && bytes <= config::kSmallTurnBytes &&
      outstanding_ <= config::kSmallTurnBytes &&
      (!pull_receiver_ || pull_receiver_->waiting() == 0))
    context_.loop.expect_more();
}

void TcpLane::on_writable() {
  flush();
}

void TcpLane::flush() {
  if (state_ == State::kClosed || state_ == State::kConnecting) return;
  check_reply_grant();
  LaneWriter::Outcome outcome = writer_.flush(*stream_, config::kWriteBudgetPerTurn);
  bytes_out_ += outcome.bytes;
  if (sent_unanswered_ == 0 && !outcome.sent.empty()) believed_ = bytes_out_;
  sent_unanswered_ += outcome.sent.size();
  for (const ChunkId chunk : outcome.sent) note_sent(chunk);
  context_.counters.payload_bytes_sent += outcome.payload_bytes;
  if (!outcome.error.is_ok()) return fail(outcome.error);
  const bool want = outcome.blocked || outcome.budget_used;
  if (want != want_write_) {
    want_write_ = want;
    stream_->want_write(want);
  }
  if (!outcome.sent.empty() && !want) expect_more_after(outcome.bytes);
  for (const ChunkId chunk : outcome.replies) finish_reply(chunk);
  for (const auto& [chunk, unsent] : outcome.faulted) {
    const Status why = source_fault();
    if (writes_.contains(chunk)) {
      end_write(chunk, unsent ? WriteEnd::kUnsent : WriteEnd::kLeft);
      if (observer_ != nullptr) observer_->on_chunk_done(*this, to_entry(chunk, why));
      if (state_ == State::kClosed) return;
    } else if (!jobs_.empty() && jobs_.front().chunk == chunk) {
      jobs_.front().zeroed = true;
      jobs_.front().result = to_entry(chunk, why);
    }
  }
  if (state_ == State::kRejecting && writer_.empty()) return close();
  update_reading();
}

void TcpLane::update_reading() {
  if (state_ == State::kClosed || state_ == State::kConnecting) return;
  // A peer that doesn't take its answers gets no further questions read.
  const bool want =
      state_ != State::kRejecting &&
      (initiator_ || (writer_.urgent_bytes() < config::kMaxAckBacklogBytes && may_queue_read() &&
                      (!pull_receiver_ || pull_receiver_->waiting() < config::kMaxQueuedPulls)));
  if (want == want_read_) return;
  want_read_ = want;
  reader_.set_paused(!want);
  stream_->want_read(want);
  if (want && !in_read_) {
    in_read_ = true;
    const LaneReader::Outcome outcome = reader_.drain_buffered();
    in_read_ = false;
    if (state_ == State::kClosed) return;
    if (!outcome.error.is_ok()) return fail(outcome.error);
    flush_acks();
    if (!writer_.empty()) stream_->want_write(want_write_ = true);
  }
}

void TcpLane::send_frame(FrameType type, std::uint64_t id, Bytes body) {
  std::vector<std::byte> frame;
  wire::append_frame(frame, type, id, body);
  writer_.queue_urgent(std::move(frame));
}

// ----------------------------------------------------------------------------------- handshake

void TcpLane::accept(wire::HelloAck ack, const Serving& serving) {
  KVM_CHECK(!initiator_ && state_ == State::kAwaitHello);
  serving_ = serving;
  if (serving.scratch_bytes > 0) {
    scratch_.resize(serving.scratch_bytes);
    scratch_grant_ = GrantId(context_.random.next() | 2U);
    scratch_ref_ = {0xffffffffU, static_cast<std::uint32_t>(context_.random.next() | 1U)};
    ack.scratch = wire::Scratch{scratch_ref_, scratch_grant_, serving.scratch_bytes};
  }
  if (serving.data && context_.pulls != nullptr && peer_host_) {
    pull_receiver_ = context_.pulls->receive_from(*peer_host_, name_, *this);
    if (pull_receiver_) {
      ack.host = context_.pulls->identity();
      read_sender_ = context_.pulls->send_to(*peer_host_, reads_of(name_), *this);
    }
  }
  ack.features |= wire::kFeatureLoans;
  state_ = State::kOpen;
  send_frame(FrameType::kHelloAck, 0, wire::encode_hello_ack(ack));
  flush();
}

void TcpLane::reject(const wire::HelloReject& reject) {
  KVM_CHECK(!initiator_ && state_ == State::kAwaitHello);
  send_frame(FrameType::kHelloReject, 0, wire::encode_hello_reject(reject));
  state_ = State::kRejecting;
  flush();
}

Status TcpLane::on_handshake_frame(const wire::FrameHeader& header, Bytes body) {
  if (!initiator_ && header.type == FrameType::kHello) {
    auto hello = wire::parse_hello(body);
    if (!hello) return hello.error();
    if (observer_ == nullptr) return protocol_error("nobody answers hellos here");
    peer_host_ = hello->host;
    name_ = name_of(*hello);
    observer_->on_hello(*this, *hello);
    return Status::ok();
  }
  if (initiator_ && header.type == FrameType::kHelloAck) {
    auto ack = wire::parse_hello_ack(body);
    if (!ack) return ack.error();
    state_ = State::kOpen;
    if (ack->host && context_.pulls != nullptr) {
      pull_sender_ = context_.pulls->send_to(*ack->host, name_, *this);
      if ((ack->features & wire::kFeatureLoans) != 0) peer_host_ = ack->host;
    }
    observer_->on_hello_ack(*this, *ack);
    return Status::ok();
  }
  if (initiator_ && header.type == FrameType::kHelloReject) {
    auto reject = wire::parse_hello_reject(body);
    if (!reject) return reject.error();
    close();
    observer_->on_hello_reject(*this, *reject);
    return Status::ok();
  }
  return protocol_error(
      fmt::format("frame type {} before the handshake", static_cast<unsigned>(header.type)));
}

// -------------------------------------------------------------------------------------- frames

Status TcpLane::on_frame(const wire::FrameHeader& header, Bytes body, std::vector<iovec>& into) {
  if (state_ == State::kAwaitHello || state_ == State::kAwaitAnswer)
    return on_handshake_frame(header, body);
  if (state_ != State::kOpen) return protocol_error("frame after the end");
  if (header.type == FrameType::kControl) {
    if (!initiator_ && !serving_.control) return protocol_error("control message on a data lane");
    if (observer_ != nullptr) observer_->on_control(*this, header.id, body);
    return Status::ok();
  }
  return initiator_ ? on_initiator_frame(header, body, into)
                    : on_acceptor_frame(header, body, into);
}

Status TcpLane::on_acceptor_frame(const wire::FrameHeader& header, Bytes body,
                                  std::vector<iovec>& into) {
  switch (header.type) {
    case FrameType::kWrite:
      return on_write(header, body, into);
    case FrameType::kPull:
      return on_pull(header, body);
    case FrameType::kRead:
      return on_read_request(header, body);
    case FrameType::kReadTaken:
      return on_read_taken(header, body);
    case FrameType::kPing:
      send_frame(FrameType::kPong, header.id, {});
      return Status::ok();
    default:
      return protocol_error(fmt::format("an initiator may not send frame type {}",
                                        static_cast<unsigned>(header.type)));
  }
}

Status TcpLane::on_initiator_frame(const wire::FrameHeader& header, Bytes body,
                                   std::vector<iovec>& into) {
  switch (header.type) {
    case FrameType::kAck:
      return on_acks(header, body);
    case FrameType::kReadData:
      return on_read_data(header, body, into);
    case FrameType::kReadOffer:
      return on_read_offer(header, body);
    case FrameType::kReadEnd:
      return on_read_end(header, body);
    case FrameType::kPong:
      if (observer_ != nullptr) observer_->on_pong(*this, header.id);
      return Status::ok();
    case FrameType::kControlAck:
      if (observer_ != nullptr) observer_->on_control_ack(*this, header.id);
      return Status::ok();
    default:
      return protocol_error(fmt::format("an acceptor may not send frame type {}",
                                        static_cast<unsigned>(header.type)));
  }
}

Status TcpLane::resolve_scratch(std::span<const wire::WireSlice> slices, std::uint32_t* argument,
                                std::vector<iovec>& where) {
  for (std::uint32_t i = 0; i < slices.size(); ++i) {
    const wire::WireSlice& slice = slices[i];
    *argument = i;
    if (slice.region != scratch_ref_ || slice.offset > scratch_.size() ||
        slice.length > scratch_.size() - slice.offset)
      return {Code::kOutOfRange, Origin::kCaller, "outside of the scratch region"};
    where.push_back({scratch_.data() + slice.offset, slice.length});
  }
  return Status::ok();
}

Status TcpLane::resolve(GrantId grant, Access want, std::span<const wire::WireSlice> slices,
                        std::uint32_t* argument, std::vector<iovec>& where, bool& scratch) {
  scratch = !scratch_.empty() && grant == scratch_grant_;
  if (scratch) return resolve_scratch(slices, argument, where);
  if (!serving_.data)
    return {Code::kPermissionDenied, Origin::kCaller, "this lane carries no data"};
  return context_.grants.resolve(grant, want, serving_.initiator, slices, context_.loop.now(),
                                 where, argument);
}

Status TcpLane::on_write(const wire::FrameHeader& header, Bytes body, std::vector<iovec>& into) {
  auto data = wire::parse_data_body(header, body, slices_);
  if (!data) return data.error();
  incoming_ = {};
  incoming_.header = header;
  incoming_.grant = data->grant;
  incoming_.checksum = data->checksum;
  incoming_.removals = context_.regions.removals();
  std::uint32_t argument = 0;
  const Status status =
      resolve(data->grant, Access::kRemoteWrite, slices_, &argument, into, incoming_.scratch);
  incoming_.result = to_entry(ChunkId(header.id), status, argument);
  if (!status.is_ok()) {
    into.clear();
    ++context_.counters.frames_refused;
  } else if (!incoming_.scratch &&
             context_.grants.has_landed(data->grant, serving_.initiator, ChunkId(header.id))) {
    // Sent again since our word was lost. The bytes are in place and may be counted: this copy,
    // whatever became of it on the way, is read past and acknowledged.
    incoming_.repeated = true;
    into.clear();
  } else if ((header.flags & wire::kFlagChecksum) != 0) {
    start_checksum();
  }
  if (KVM_SABOTAGE(ack_before_landing) && !incoming_.scratch) push_ack(incoming_.result);
  return Status::ok();
}

// Pools of rooms stay until their manager has given them up; raw users may unmap what they like.
bool TcpLane::places_stay() const {
  return !initiator_ && !incoming_.reading && !incoming_.scratch &&
         incoming_.grant != memory::kStandingGrant;
}

bool TcpLane::payload_still_allowed() {
  if (incoming_.reading) return !incoming_.detached;
  if (incoming_.scratch || KVM_SABOTAGE(grant_checked_once_per_frame)) return true;
  if (context_.grants.still_allowed(incoming_.grant, context_.loop.now(), incoming_.removals))
    return true;
  // Another region may have gone: ask again in full before giving up.
  std::vector<iovec> where;
  std::uint32_t argument = 0;
  const Status status =
      context_.grants.resolve(incoming_.grant, Access::kRemoteWrite, serving_.initiator, slices_,
                              context_.loop.now(), where, &argument);
  if (status.is_ok()) {
    incoming_.removals = context_.regions.removals();
    return true;
  }
  incoming_.result = to_entry(ChunkId(incoming_.header.id), status, argument);
  ++context_.counters.frames_refused;
  return false;
}

void TcpLane::start_checksum() {
  if (sum_) {
    sum_->reset();
  } else {
    sum_ = std::make_unique<wire::Checksum>();
  }
}

void TcpLane::on_payload_bytes(std::span<const iovec> landed, std::size_t bytes) {
  context_.counters.payload_bytes_received += bytes;
  if ((incoming_.header.flags & wire::kFlagChecksum) == 0) return;
  if (!memory::guarded_sum(landed, *sum_)) on_payload_fault();
}

void TcpLane::on_payload_discarded(std::size_t bytes) {
  context_.counters.payload_bytes_discarded += bytes;
}

void TcpLane::on_payload_fault() {
  incoming_.result =
      to_entry(ChunkId(incoming_.header.id),
               {Code::kNotRegistered, Origin::kLocal, "destination memory isn't accessible"});
  if (incoming_.reading) {
    const auto at = reads_.find(ChunkId(incoming_.header.id));
    if (at != reads_.end()) at->second.faulted = true;
  }
}

void TcpLane::on_payload_end() {
  const bool sum_matches = (incoming_.header.flags & wire::kFlagChecksum) == 0 ||
                           incoming_.result.code != Code::kOk || incoming_.repeated ||
                           KVM_SABOTAGE(checksum_ignored) ||
                           (sum_ && sum_->value() == incoming_.checksum);
  if (incoming_.reading) {
    const auto at = reads_.find(ChunkId(incoming_.header.id));
    if (at == reads_.end()) return;
    at->second.received += incoming_.header.payload_bytes;
    if (!sum_matches) at->second.corrupt = true;
    return;
  }
  if (!sum_matches)
    incoming_.result = {ChunkId(incoming_.header.id), Code::kChecksumMismatch, Origin::kLink, 0};
  if (incoming_.repeated) {  // the grant may have ended while it was read past
    std::vector<iovec> where;
    std::uint32_t argument = 0;
    const Status status =
        context_.grants.resolve(incoming_.grant, Access::kRemoteWrite, serving_.initiator, slices_,
                                context_.loop.now(), where, &argument);
    incoming_.result = to_entry(ChunkId(incoming_.header.id), status, argument);
  }
  // A grant that ended between the last read and now doesn't take the bytes back, but they don't
  // count: nothing of an ended room is ever reported as landed.
  if (incoming_.result.code == Code::kOk && !incoming_.scratch)
    context_.grants.note_landed(incoming_.grant, slices_, serving_.initiator,
                                ChunkId(incoming_.header.id));
  if (!KVM_SABOTAGE(ack_before_landing) || incoming_.scratch) push_ack(incoming_.result);
}

void TcpLane::push_ack(const wire::AckEntry& entry) {
  acks_.push_back(entry);
  if (!in_read_ || acks_.size() >= wire::kMaxAcksPerFrame) flush_acks();
}

void TcpLane::flush_acks() {
  if (acks_.empty() || state_ != State::kOpen) return;
  std::vector<std::byte> frame;
  wire::append_acks(frame, FrameType::kAck, 0, acks_);
  acks_.clear();
  if (pull_receiver_ && pull_receiver_->put(frame)) return;
  writer_.queue_urgent(std::move(frame));
}

// ------------------------------------------------------------------------------ the initiator

void TcpLane::send_control(std::uint64_t seq, Bytes body) {
  send_frame(FrameType::kControl, seq, body);
}

void TcpLane::send_control_ack(std::uint64_t seq) {
  send_frame(FrameType::kControlAck, seq, {});
}

void TcpLane::send_ping(std::uint64_t nonce) {
  send_frame(FrameType::kPing, nonce, {});
}

void TcpLane::post(const Chunk& chunk) {
  KVM_CHECK(initiator_);
  outstanding_ += chunk.bytes;
  if (chunk.opcode == Opcode::kWrite) {
    PendingWrite write{.chunk = chunk};
    last_write_copied_ = write.pulled = offer_pull(chunk, write.sent);
    writes_.emplace(chunk.id, write);
    if (write.pulled) return;
  } else {
    PendingRead read;
    read.chunk = chunk;
    read.asked = ask_for_loan(read);
    reads_.emplace(chunk.id, read);
    if (read.asked) return;
  }
  writer_.queue_chunk(chunk);
}

bool TcpLane::detach(ChunkId chunk) {
  const bool unsent = writer_.detach(chunk);
  end_write(chunk, unsent ? WriteEnd::kUnsent : WriteEnd::kLeft);
  if (const auto at = reads_.find(chunk); at != reads_.end()) {
    end_loan_of(at->second);
    outstanding_ -= at->second.chunk.bytes;
    reads_.erase(at);
    if (incoming_.reading && incoming_.header.id == chunk.value) incoming_.detached = true;
  }
  return unsent;
}

void TcpLane::note_sent(ChunkId chunk) {
  if (const auto write = writes_.find(chunk); write != writes_.end()) {
    write->second.sent = true;
  } else if (const auto read = reads_.find(chunk); read != reads_.end()) {
    read->second.sent = true;
  }
}

// A frame that the peer answers went by shared memory.
void TcpLane::note_put() {
  if (sent_unanswered_++ == 0) believed_ = bytes_out_;
  context_.loop.expect_more();
}

void TcpLane::note_answer() {
  if (sent_unanswered_ > 0) --sent_unanswered_;
  believed_ = sent_unanswered_ > 0 ? bytes_out_ : UINT64_MAX;
}

Status TcpLane::on_acks(const wire::FrameHeader& header, Bytes body) {
  Status status = wire::parse_acks(header, body, received_);
  if (!status.is_ok()) return status;
  for (const wire::AckEntry& entry : received_) {
    note_answer();
    const auto at = writes_.find(entry.chunk);
    if (at == writes_.end()) {  // detached meanwhile
      end_remnant(entry.chunk);
      if (state_ == State::kClosed) break;
      continue;
    }
    // An answer ends the chunk, and with it the right to read its memory: it can't come before the
    // last byte has left.
    if (!at->second.sent) return early_answer(entry.chunk);
    if (at->second.pulled && entry.code == Code::kUnavailable) {
      // The peer can't reach our memory: the same chunk goes as a write.
      const Chunk chunk = at->second.chunk;
      end_write(chunk.id, WriteEnd::kAnswered);
      if (pull_sender_) pull_sender_->give_up({entry.code, entry.origin, "pulling failed"});
      post(chunk);
      continue;
    }
    end_write(entry.chunk, WriteEnd::kAnswered);
    observer_->on_chunk_done(*this, entry);
    if (state_ == State::kClosed) break;
  }
  return Status::ok();
}

}  // namespace kvmend::transport::tcp
