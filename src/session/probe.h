// One probe of a peer: a handshake that shows who answers, then a real write and read-back of a
// scratch region over the same transport that data uses. Never touches an epoch.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "env/event_loop.h"
#include "session/self.h"
#include "transport/lane.h"

namespace kvmend::session {

struct ProbeResult {
  Status status;            ///< OK: bytes went there and came back
  Incarnation incarnation;  ///< who answered, when somebody did
};

/// Loop thread. Destroying it ends the probe silently.
class Probe final : private transport::LaneObserver {
 public:
  using Done = std::move_only_function<void(const ProbeResult&)>;

  Probe(env::EventLoop& loop, env::Random& random, transport::Transport& transport,
        const Self& self, Address peer, Incarnation target, Time deadline, Done done);
  ~Probe() override;

  void set_done(Done done) { done_ = std::move(done); }
  /// `done` runs once, never from inside this call.
  void start();
  [[nodiscard]] Time started() const { return started_; }
  /// The peer's host has our hello, its process hasn't answered: when it does, this probe is as
  /// good as a new one.
  [[nodiscard]] bool waits_for_process() const {
    return !answered_.is_set() && lane_ && lane_->progress() > 0;
  }
  /// The peer has answered, and bytes have moved since then, or since the last call.
  [[nodiscard]] bool moves() {
    if (!answered_.is_set() || !lane_) return false;
    const std::uint64_t progress = lane_->progress();
    return std::exchange(progress_seen_, progress) != progress;
  }

 private:
  void on_hello_ack(transport::Lane& lane, const wire::HelloAck& ack) override;
  void on_hello_reject(transport::Lane& lane, const wire::HelloReject& reject) override;
  void on_chunk_done(transport::Lane& lane, const wire::AckEntry& result) override;
  void on_lane_down(transport::Lane& lane, const Status& why) override;
  void finish(Status status);
  void post(Opcode opcode, std::vector<std::byte>& bytes);

  env::EventLoop& loop_;
  env::Random& random_;
  transport::Transport& transport_;
  const Self& self_;
  Address peer_;
  Incarnation target_;
  Time deadline_at_;
  Done done_;
  Time started_{};
  std::unique_ptr<transport::Lane> lane_;
  wire::Scratch scratch_;
  Incarnation answered_;
  std::uint64_t progress_seen_ = 0;
  transport::Piece piece_;
  std::vector<std::byte> sent_;
  std::vector<std::byte> received_;
  env::ScopedTimer deadline_;
};

}  // namespace kvmend::session
