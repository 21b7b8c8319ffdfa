#include "env/sim/endpoint.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/check.h"
#include "env/sim/host.h"

namespace kvmend::env::sim {
namespace {

using namespace std::chrono_literals;

// As Linux has them: TCP_TIMEOUT_INIT, TCP_RTO_MIN, TCP_RTO_MAX, tcp_syn_retries, tcp_retries2,
// tcp_orphan_retries.
constexpr Duration kConnectTimeout = 1s;
constexpr Duration kFirstTimeout = 200ms;
constexpr Duration kLongestTimeout = 120s;
constexpr int kConnectRetries = 6;
constexpr int kRetries = 15;
constexpr int kOrphanRetries = 8;
constexpr Duration kHalfOpenTime = 63s;  // SYN_RECV with its five retries

}  // namespace

Endpoint::Endpoint(SimCore& core, SimHost& host, Address local, Address remote, State state,
                   const EndpointOptions& options)
    : core_(core),
      host_(host),
      local_(std::move(local)),
      remote_(std::move(remote)),
      state_(state),
      options_(options) {}

// -------------------------------------------------------------------------- the application's side

void Endpoint::start_connecting() {
  timeout_ = kConnectTimeout;
  stuck_since_ = core_.now;
  send({.kind = Packet::Kind::kSyn, .edge = edge()});
  arm_timer();
}

std::size_t Endpoint::writable_bytes() const {
  if (state_ != State::kEstablished) return 0;
  return options_.send_buffer - std::min(options_.send_buffer, out_.size());
}

void Endpoint::write(Bytes bytes) {
  if (out_.empty()) stuck_since_ = core_.now;
  out_.append(bytes);
}

void Endpoint::consume(std::size_t length) {
  in_.consume(length);
  // Tells the peer of the new room only when it is worth a packet (silly window syndrome).
  const std::size_t worth = std::max<std::size_t>(
      1, std::min(options_.receive_buffer / 2, core_.options.max_segment_bytes));
  if (state_ == State::kEstablished && edge() >= advertised_ + worth) send_ack();
}

void Endpoint::close(bool reset) {
  observer_ = {};
  if (state_ == State::kClosed) return;
  const auto keep = shared_from_this();
  if (state_ == State::kSynSent) return vanish();
  // Bytes that the application hasn't read are lost: the peer must learn that, so it is a reset.
  if (reset || !in_.empty()) {
    send_reset();
    return vanish();
  }
  if (out_.empty()) stuck_since_ = core_.now;
  closing_ = true;
  pump();
}

// ------------------------------------------------------------------------------ the network's side

void Endpoint::receive(const Packet& packet) {
  const auto keep = shared_from_this();
  switch (packet.kind) {
    case Packet::Kind::kReset:
      return fail(state_ == State::kSynSent ? ECONNREFUSED : ECONNRESET);
    case Packet::Kind::kSyn:
      // Ours was lost or is late. (A new connection of the same addresses is the host's affair.)
      return send_syn_ack();
    case Packet::Kind::kSynAck:
      if (state_ == State::kSynSent) {
        state_ = State::kEstablished;
        stop_timer();
        retries_ = 0;
        timeout_ = kFirstTimeout;
        peer_edge_ = packet.edge;
        send_ack();
        notify();
        pump();
      } else {
        send_ack();  // the peer missed our acknowledgement
      }
      return;
    case Packet::Kind::kSegment:
      break;
  }
  if (state_ == State::kSynSent) return send_reset();
  if (state_ == State::kSynReceived) {
    if (!host_.admit(keep)) return;
    state_ = State::kEstablished;
    stop_timer();
  }
  receive_ack(packet);
  if (state_ == State::kClosed) return;
  receive_payload(packet);
}

void Endpoint::receive_ack(const Packet& packet) {
  const bool fin_acked = closing_ && packet.ack > end();
  const std::uint64_t acked = std::min(packet.ack, end());
  const bool progress = acked > first_ || (fin_acked && !fin_acked_);
  if (acked > first_) {
    out_.consume(acked - first_);
    first_ = acked;
    next_ = std::max(next_, first_);
  }
  fin_acked_ = fin_acked_ || fin_acked;
  peer_edge_ = std::max(peer_edge_, packet.edge);
  if (progress) {
    stuck_since_ = core_.now;
    timeout_ = kFirstTimeout;
    stop_timer();
  }
  // A peer that answers is alive, however long its window stays shut.
  if (progress || next_ == first_) retries_ = 0;
  if (fin_acked_) return vanish();
  if (progress) notify();
  pump();
}

void Endpoint::receive_payload(const Packet& packet) {
  const bool wants_ack = !packet.payload.empty() || packet.fin || packet.probe;
  if (!wants_ack) return;
  if (closing_ && !packet.payload.empty()) {
    // Nobody will ever read it.
    send_reset();
    return vanish();
  }
  const std::uint64_t packet_end = packet.sequence + packet.payload.size();
  if (!fin_received_ && packet.sequence <= expected_ && packet_end >= expected_) {
    const std::size_t room =
        options_.receive_buffer - std::min(options_.receive_buffer, in_.size());
    const Bytes news = Bytes(packet.payload).subspan(expected_ - packet.sequence);
    const std::size_t taken = std::min(news.size(), room);
    in_.append(news.first(taken));
    expected_ += taken;
    if (packet.fin && taken == news.size()) {
      fin_received_ = true;
      ++expected_;
    }
    if (taken > 0 || fin_received_) notify();
  }
  if (state_ != State::kClosed) send_ack();
}

void Endpoint::fail(int sys_errno) {
  if (state_ == State::kClosed) return;
  const auto keep = shared_from_this();
  core_.note("broken", Trace::hash(local_.to_string()), Trace::hash(remote_.to_string()),
             static_cast<std::uint64_t>(sys_errno));
  error_ = sys_errno;
  vanish();
  notify();
}

void Endpoint::vanish() {
  state_ = State::kClosed;
  stop_timer();
  out_.clear();
  host_.forget(*this);
}

// ----------------------------------------------------------------------------------------- sending

void Endpoint::pump() {
  if (state_ != State::kEstablished) return;
  const auto keep = shared_from_this();
  if (timeout_ == Duration::zero()) timeout_ = kFirstTimeout;
  const std::uint64_t limit = std::min(end(), peer_edge_);
  while (next_ < limit) {
    const std::size_t size =
        core_.random.cut(std::min<std::size_t>(limit - next_, core_.options.max_segment_bytes),
                         core_.options.short_io_probability);
    const Bytes bytes = out_.peek(next_ - first_, size);
    send({.sequence = next_, .payload = {bytes.begin(), bytes.end()}});
    next_ += size;
  }
  if (closing_ && next_ == end()) {
    send({.sequence = next_, .fin = true});
    ++next_;
  }
  arm_timer();
}

std::uint64_t Endpoint::edge() const {
  const std::size_t room = options_.receive_buffer - std::min(options_.receive_buffer, in_.size());
  return expected_ + room;
}

void Endpoint::send(Packet packet) {
  packet.from = local_;
  packet.to = remote_;
  packet.ack = expected_;
  packet.edge = advertised_ = std::max(advertised_, edge());
  host_.send(std::move(packet), not_before_);
}

void Endpoint::send_ack(bool probe) {
  send({.sequence = next_, .probe = probe});
}
void Endpoint::send_reset() {
  send({.kind = Packet::Kind::kReset});
}

void Endpoint::send_syn_ack() {
  send({.kind = Packet::Kind::kSynAck});
  if (state_ != State::kSynReceived || timer_ != EventQueue::kNone) return;
  timer_ = core_.events.add(core_.now + kHalfOpenTime, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->vanish();
  });
}

// ------------------------------------------------------------------------------------------ timing

bool Endpoint::waits_for_peer() const {
  if (state_ == State::kSynSent) return true;
  return state_ == State::kEstablished && (!out_.empty() || (closing_ && !fin_acked_));
}

void Endpoint::arm_timer() {
  if (!waits_for_peer()) {
    stop_timer();
    stuck_since_ = core_.now;
    return;
  }
  if (timer_ != EventQueue::kNone) return;
  Time when = core_.now + timeout_;
  if (options_.user_timeout > Duration::zero())
    when = std::min(when, std::max(core_.now, stuck_since_ + options_.user_timeout));
  timer_ = core_.events.add(when, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->on_timer();
  });
}

void Endpoint::stop_timer() {
  core_.events.cancel(std::exchange(timer_, EventQueue::kNone));
}

void Endpoint::on_timer() {
  timer_ = EventQueue::kNone;
  const int allowed = state_ == State::kSynSent ? kConnectRetries
                      : closing_                ? kOrphanRetries
                                                : kRetries;
  const bool too_long =
      options_.user_timeout > Duration::zero() && core_.now - stuck_since_ >= options_.user_timeout;
  if (too_long || retries_ >= allowed) return fail(ETIMEDOUT);
  ++retries_;
  timeout_ = std::min(timeout_ * 2, kLongestTimeout);
  retransmit();
  arm_timer();
}

// Goes back to the first byte that isn't acknowledged.
void Endpoint::retransmit() {
  if (state_ == State::kSynSent) return send({.kind = Packet::Kind::kSyn});
  next_ = first_;
  const bool window_shut = next_ >= std::min(end(), peer_edge_) && !out_.empty();
  if (window_shut) return send_ack(/*probe=*/true);
  pump();
}

void Endpoint::notify() {
  // A copy: the observer may be replaced while it runs.
  if (const auto observer = observer_) observer();
}

}  // namespace kvmend::env::sim
