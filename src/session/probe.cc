#include "session/probe.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/config.h"
#include "base/sabotage.h"
#include "session/graveyard.h"

namespace kvmend::session {

Probe::Probe(env::EventLoop& loop, env::Random& random, transport::Transport& transport,
             const Self& self, Address peer, Incarnation target, Time deadline, Done done)
    : loop_(loop),
      random_(random),
      transport_(transport),
      self_(self),
      peer_(std::move(peer)),
      target_(target),
      deadline_at_(deadline),
      done_(std::move(done)),
      started_(loop.now()),
      deadline_(loop) {}

Probe::~Probe() {
  bury(loop_, std::move(lane_));
}

void Probe::start() {
  auto lane = transport_.connect(peer_, self_.hello(wire::LaneKind::kProbe, target_), this);
  if (lane) lane_ = std::move(*lane);
  const Time when = lane ? deadline_at_ : loop_.now();
  const Status at_once = lane ? Status::ok() : lane.error();
  deadline_.arm(when, [this, at_once] {
    finish(at_once.is_ok()
               ? Status(Code::kPeerSilent, Origin::kPeer,
                        fmt::format("{} didn't finish the probe in time", peer_.to_string()))
               : at_once);
  });
}

void Probe::finish(Status status) {
  if (!done_) return;
  bury(loop_, std::move(lane_));
  deadline_.cancel();
  Done done = std::move(done_);
  done_ = nullptr;
  done({std::move(status), answered_});
}

void Probe::post(Opcode opcode, std::vector<std::byte>& bytes) {
  piece_ = {bytes.data(), scratch_.region, 0, bytes.size()};
  transport::Chunk chunk;
  chunk.id = ChunkId(opcode == Opcode::kWrite ? 1 : 2);
  chunk.opcode = opcode;
  chunk.grant = scratch_.grant;
  chunk.checksum = true;
  chunk.pieces = std::span(&piece_, 1);
  chunk.bytes = static_cast<std::uint32_t>(bytes.size());
  lane_->post(chunk);
  lane_->flush();
}

void Probe::on_hello_ack(transport::Lane&, const wire::HelloAck& ack) {
  answered_ = ack.incarnation;
  progress_seen_ = lane_->progress();
  if (KVM_SABOTAGE(control_probe_only)) return finish(Status::ok());
  if (target_.is_set() && ack.incarnation != target_)
    return finish({Code::kPeerRestarted, Origin::kPeer,
                   fmt::format("{} is another process now", peer_.to_string())});
  if (!ack.scratch || ack.scratch->bytes < sizeof(std::uint64_t))
    return finish({Code::kProtocolError, Origin::kPeer, "the peer offers no scratch region"});
  scratch_ = *ack.scratch;
  sent_.resize(std::min(scratch_.bytes, config::kScratchBytes) & ~7U);
  for (std::size_t i = 0; i < sent_.size(); i += 8) store_le(sent_.data() + i, random_.next());
  post(Opcode::kWrite, sent_);
}

void Probe::on_hello_reject(transport::Lane&, const wire::HelloReject& reject) {
  answered_ = reject.incarnation;
  const Origin origin = reject.code == Code::kResourceExhausted ? Origin::kLocal : Origin::kPeer;
  finish({reject.code, origin, fmt::format("{}: {}", peer_.to_string(), reject.message)});
}

void Probe::on_chunk_done(transport::Lane&, const wire::AckEntry& result) {
  if (result.code != Code::kOk)
    return finish(
        {result.code, Origin::kLink, fmt::format("{} refused the data probe", peer_.to_string())});
  if (result.chunk == ChunkId(1)) {
    received_.assign(sent_.size(), std::byte{0});
    return post(Opcode::kRead, received_);
  }
  if (received_ != sent_)
    return finish({Code::kChecksumMismatch, Origin::kLink,
                   fmt::format("{} returned other bytes than were written", peer_.to_string())});
  finish(Status::ok());
}

void Probe::on_lane_down(transport::Lane&, const Status& why) {
  finish(why);
}

}  // namespace kvmend::session
