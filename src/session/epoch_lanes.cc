#include "session/epoch_lanes.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/sabotage.h"
#include "base/try.h"
#include "session/graveyard.h"

namespace kvmend::session {

using transport::Lane;

EpochLanes::EpochLanes(env::EventLoop& loop, transport::Transport& transport, const Self& self,
                       Address peer, Incarnation target, std::uint64_t epoch,
                       Duration connect_deadline, EpochEvents& events)
    : loop_(loop),
      transport_(transport),
      self_(self),
      peer_(std::move(peer)),
      target_(target),
      epoch_(epoch),
      connect_deadline_(connect_deadline),
      events_(events),
      deadline_(loop) {}

EpochLanes::~EpochLanes() {
  close();
}

Status EpochLanes::start() {
  wire::Hello hello = self_.hello(wire::LaneKind::kControl, target_);
  hello.epoch = Epoch(epoch_);
  auto lane = transport_.connect(peer_, hello, this);
  if (!lane) return lane.error();
  control_ = std::move(*lane);
  deadline_.arm(loop_.now() + connect_deadline_, [this] {
    fail({Code::kPeerSilent, Origin::kPeer,
          fmt::format(
              "{} didn't answer the handshake within {} ms", peer_.to_string(),
              std::chrono::duration_cast<std::chrono::milliseconds>(connect_deadline_).count())});
  });
  return Status::ok();
}

void EpochLanes::close() {
  closed_ = true;
  up_ = false;
  deadline_.cancel();
  bury(loop_, std::move(control_));
  for (DataLane& data : data_) {
    const std::vector<ChunkId> unsent = data.lane->unsent();
    never_left_.insert(never_left_.end(), unsent.begin(), unsent.end());
    bury(loop_, std::move(data.lane));
  }
  std::ranges::sort(never_left_);
  data_.clear();
}

void EpochLanes::fail(const Status& why) {
  if (closed_) return;
  close();
  events_.on_epoch_down(why);
}

Status EpochLanes::dial_data_lanes() {
  wire::Hello hello = self_.hello(wire::LaneKind::kData, ack_.incarnation);
  hello.epoch = Epoch(epoch_);
  hello.token = ack_.token;
  for (int i = 0; i < self_.options.tcp.data_lanes; ++i) {
    hello.lane_index = static_cast<std::uint32_t>(i);
    auto lane = transport_.connect(peer_, hello, this);
    if (!lane) return lane.error();
    data_.push_back({std::move(*lane), {}, 0});
  }
  return Status::ok();
}

void EpochLanes::on_hello_ack(Lane& lane, const wire::HelloAck& ack) {
  if (closed_) return;
  const bool other =
      target_.is_set() && ack.incarnation != target_ && !KVM_SABOTAGE(no_incarnation_check);
  if (ack.epoch.value != epoch_ || other)
    return fail({Code::kProtocolError, Origin::kPeer,
                 fmt::format("{} answered for another epoch or process", peer_.to_string())});
  if (&lane == control_.get()) {
    ack_ = ack;
    const Status status = dial_data_lanes();
    if (!status.is_ok()) fail(status);
    return;
  }
  if (ack.incarnation != ack_.incarnation)
    return fail({Code::kPeerRestarted, Origin::kPeer,
                 fmt::format("{} changed during the handshake", peer_.to_string())});
  if (ack.host) ack_.host = ack.host;
  if (++joined_ < data_.size()) return;
  up_ = true;
  deadline_.cancel();
  events_.on_epoch_up(ack_);
}

void EpochLanes::on_hello_reject(Lane&, const wire::HelloReject& reject) {
  if (closed_) return;
  close();
  events_.on_epoch_rejected(reject);
}

void EpochLanes::on_lane_down(Lane&, const Status& why) {
  fail(why);
}

void EpochLanes::DataLane::answered(Time now) {
  watch.progress(now);
  if (lane->outstanding_bytes() == 0) watch.end();
}

void EpochLanes::on_chunk_done(Lane& lane, const wire::AckEntry& result) {
  if (closed_) return;
  const auto at = std::ranges::find_if(data_, [&](const auto& d) { return d.lane.get() == &lane; });
  if (at != data_.end()) at->answered(loop_.now());
  events_.on_chunk_done(result);
}

void EpochLanes::on_remnant_over(Lane& lane) {
  if (closed_) return;
  const auto at = std::ranges::find_if(data_, [&](const auto& d) { return d.lane.get() == &lane; });
  if (at != data_.end()) at->answered(loop_.now());
  events_.on_remnant_over();
}

bool EpochLanes::takes_chunks() const {
  std::size_t lanes = 0;
  for (const DataLane& data : data_) {
    const transport::Remnants remnants = data.lane->remnants();
    if (remnants.any_order > 0) return false;
    if (remnants.in_order > 0) ++lanes;
  }
  return lanes <= 1;
}

void EpochLanes::on_control(Lane&, std::uint64_t, Bytes body) {
  if (!closed_) events_.on_control(body);
}

void EpochLanes::on_control_ack(Lane&, std::uint64_t seq) {
  if (!closed_) events_.on_control_ack(seq);
}

void EpochLanes::on_pong(Lane&, std::uint64_t) {
  if (!closed_) events_.on_pong();
}

void EpochLanes::send_control(std::uint64_t seq, Bytes body) {
  if (control_) control_->send_control(seq, body);
}

void EpochLanes::send_ping(std::uint64_t nonce) {
  if (control_) control_->send_ping(nonce);
}

std::uint32_t EpochLanes::longest_chunk(Opcode opcode, std::uint32_t usual) const {
  std::uint32_t longest = data_.empty() ? usual : UINT32_MAX;
  for (const DataLane& data : data_)
    longest = std::min(longest, data.lane->longest_chunk(opcode, usual));
  return longest;
}

void EpochLanes::post(const transport::Chunk& chunk) {
  const auto data = std::ranges::min_element(data_, {}, [](const DataLane& d) {
    const bool behind = d.lane->remnants().in_order > 0;
    return std::pair(!behind, d.lane->outstanding_bytes());
  });
  data->lane->post(chunk);
  data->watch.begin(loop_.now());
}

void EpochLanes::detach(ChunkId chunk) {
  for (DataLane& data : data_) {
    data.lane->detach(chunk);
    if (data.lane->outstanding_bytes() == 0) data.watch.end();
  }
}

void EpochLanes::flush() {
  // A lane may break while it is flushed, which closes the whole epoch.
  if (control_) control_->flush();
  for (std::size_t i = 0; i < data_.size(); ++i) data_[i].lane->flush();
}

void EpochLanes::look(Time now) {
  for (DataLane& data : data_) {
    const std::uint64_t progress = data.lane->progress();
    if (progress != std::exchange(data.progress, progress)) data.watch.progress(now);
  }
}

Time EpochLanes::silent_at(const health::HealthOptions& options, std::uint32_t stretch) const {
  Time at = kForever;
  for (const DataLane& data : data_) at = std::min(at, data.watch.deadline(options, stretch));
  return at;
}

void EpochLanes::forgive(Time now) {
  for (DataLane& data : data_) data.watch.forgive(now);
}

std::uint64_t EpochLanes::control_received() const {
  return control_ ? control_->received() : 0;
}

std::string_view EpochLanes::transport_name() const {
  return data_.empty() ? std::string_view("none") : data_.front().lane->transport_name();
}

}  // namespace kvmend::session
