// One epoch of an outgoing session: its control lane and its data lanes, from dialling to the end.
#pragma once

#include <memory>
#include <vector>

#include "env/event_loop.h"
#include "health/progress_watch.h"
#include "session/self.h"
#include "transport/lane.h"

namespace kvmend::session {

/// Loop thread. After `on_epoch_down` and `on_epoch_rejected` the epoch is closed; the receiver may
/// destroy it at the end of the turn.
class EpochEvents {
 public:
  virtual ~EpochEvents() = default;
  /// The peer accepted the epoch and all lanes joined.
  virtual void on_epoch_up(const wire::HelloAck& ack) = 0;
  virtual void on_epoch_rejected(const wire::HelloReject& reject) = 0;
  virtual void on_epoch_down(const Status& why) = 0;
  virtual void on_chunk_done(const wire::AckEntry& result) = 0;
  /// `takes_chunks` may be true again.
  virtual void on_remnant_over() = 0;
  virtual void on_control(Bytes body) = 0;
  virtual void on_control_ack(std::uint64_t seq) = 0;
  virtual void on_pong() = 0;
};

/// Loop thread.
class EpochLanes final : private transport::LaneObserver {
 public:
  EpochLanes(env::EventLoop& loop, transport::Transport& transport, const Self& self, Address peer,
             Incarnation target, std::uint64_t epoch, Duration connect_deadline,
             EpochEvents& events);
  ~EpochLanes() override;

  /// Dials. Errors at once: a shortage of a local resource.
  Status start();
  void close();

  [[nodiscard]] bool up() const { return up_; }
  [[nodiscard]] std::uint64_t number() const { return epoch_; }
  [[nodiscard]] std::size_t lanes() const { return data_.size() + (control_ ? 1U : 0U); }

  void send_control(std::uint64_t seq, Bytes body);
  void send_ping(std::uint64_t nonce);
  /// False while the rest of a chunk that ended before its time could land after what is posted
  /// now, and after its acknowledgement: such a rest is on another lane than the one that would be
  /// used.
  [[nodiscard]] bool takes_chunks() const;
  /// How many bytes a chunk of a long transfer may have, if they usually have `usual`.
  [[nodiscard]] std::uint32_t longest_chunk(Opcode opcode, std::uint32_t usual) const;
  /// Puts the chunk on the lane with the least outstanding bytes; behind remnants if there are any.
  void post(const transport::Chunk& chunk);
  void detach(ChunkId chunk);
  /// After `close`: of these chunks nothing has left. Sorted.
  [[nodiscard]] const std::vector<ChunkId>& never_left() const { return never_left_; }
  void flush();

  /// Looks for bytes that the peer's host took on the data lanes; answers are seen without it.
  void look(Time now);
  /// When a data lane with something unanswered counts as silent, whatever the other lanes say;
  /// `kForever` when none has.
  [[nodiscard]] Time silent_at(const health::HealthOptions& options, std::uint32_t stretch) const;
  void forgive(Time now);
  /// Bytes that came on the control lane. What our own pings make the peer's host say is no sign of
  /// life.
  [[nodiscard]] std::uint64_t control_received() const;
  [[nodiscard]] std::string_view transport_name() const;

 private:
  void on_hello_ack(transport::Lane& lane, const wire::HelloAck& ack) override;
  void on_hello_reject(transport::Lane& lane, const wire::HelloReject& reject) override;
  void on_chunk_done(transport::Lane& lane, const wire::AckEntry& result) override;
  void on_remnant_over(transport::Lane& lane) override;
  void on_control(transport::Lane& lane, std::uint64_t seq, Bytes body) override;
  void on_control_ack(transport::Lane& lane, std::uint64_t seq) override;
  void on_pong(transport::Lane& lane, std::uint64_t nonce) override;
  void on_lane_down(transport::Lane& lane, const Status& why) override;

  // A data lane and its silence: one that is dead isn't excused by others that live.
  struct DataLane {
    std::unique_ptr<transport::Lane> lane;
    health::ProgressWatch watch;
    std::uint64_t progress = 0;  // at the last look
    void answered(Time now);
  };

  Status dial_data_lanes();
  void fail(const Status& why);

  env::EventLoop& loop_;
  transport::Transport& transport_;
  const Self& self_;
  Address peer_;
  Incarnation target_;
  std::uint64_t epoch_;
  Duration connect_deadline_;
  EpochEvents& events_;
  std::unique_ptr<transport::Lane> control_;
  std::vector<DataLane> data_;
  wire::HelloAck ack_;
  std::size_t joined_ = 0;
  bool up_ = false;
  bool closed_ = false;
  std::vector<ChunkId> never_left_;
  env::ScopedTimer deadline_;
};

}  // namespace kvmend::session
