// Rooms of several ranks: one sender that serves several decode engines, or one receiver that
// several prefill stages write into. Beside it stands the checker of case R11: while the session to
// one rank is failed, no rank of a new room begins.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "kvmend/kv.h"
#include "sim/cluster.h"
#include "sim/kv_port.h"
#include "sim/load.h"

namespace kvmend::sim {

struct PairRoomsOptions {
  std::size_t prefill = 1;  ///< nodes 0 ... prefill-1: stages with some of the layers each
  std::size_t decode = 2;   ///< the nodes after them: each takes whole pages
  Duration from{};
  Duration until{};
  Duration gap = std::chrono::milliseconds(60);
  Duration late = std::chrono::milliseconds(3'500);  ///< at most, from announcing to sending
  KvOptions kv;
};

class PairRooms final : public Part {
 public:
  PairRooms(Cluster& cluster, PairRoomsOptions options);
  ~PairRooms() override;

  [[nodiscard]] std::size_t pending() const { return rooms_.size(); }
  [[nodiscard]] std::uint64_t succeeded() const { return ok_; }
  [[nodiscard]] std::uint64_t failed() const { return failed_; }
  void check_idle();
  void tear_down();

  void on_started(Instance& instance) override;
  void on_killed(Instance& instance) override;
  void on_step() override;

 private:
  struct Life;
  struct End;
  struct Room;

  void open_room();
  void announce(const std::shared_ptr<Room>& room, std::size_t rank);
  void start_sender(const std::shared_ptr<Room>& room, std::size_t rank);
  void send_chunk(const std::shared_ptr<Room>& room, std::size_t rank);
  void look_at_receiver(Room& room, End& end);
  void look_at_sender(Room& room, End& end);
  void check_end(Room& room, End& end, Instance& instance, const Status& failure, bool terminal);
  void finish(const Room& room);
  void look_for_splits();
  void check_split(const Room& room, const End& from, const std::deque<End>& ranks, Time asked);
  [[nodiscard]] bool landed(const Room& room, const End& at, std::size_t first_buffer,
                            std::size_t buffers) const;
  [[nodiscard]] std::size_t buffers_of(bool prefill) const;
  [[nodiscard]] std::uint64_t seed_of(const Life& life, RoomId room, std::size_t buffer,
                                      std::uint32_t page) const;

  Cluster& cluster_;
  const PairRoomsOptions options_;
  Dice dice_;
  Arrivals arrivals_;
  Lives<Life> lives_;
  std::vector<std::shared_ptr<Room>> rooms_;
  std::uint64_t numbers_ = 0;
  std::uint64_t steps_ = 0;
  std::uint64_t ok_ = 0;
  std::uint64_t failed_ = 0;
  bool over_ = false;
};

}  // namespace kvmend::sim
