// Rooms straight on the engine, without the KV manager: one grant each, the receiver alone decides
// by the bytes that have landed, then closes the grant and appends to its pages (case I9). With
// aborts from both ends (I2, I10), deadlines, and thieves that use a grant of somebody else.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "session/transfer_state.h"
#include "sim/cluster.h"
#include "sim/load.h"

namespace kvmend::sim {

struct GrantRoomOptions {
  Duration from{};
  Duration until{};
  Duration gap = std::chrono::milliseconds(40);
  bool checksum = false;
  bool corrupt_links = false;
  double abort_share = 0.25;
  double thief_share = 0.1;
  Duration deadline_min = std::chrono::milliseconds(500);
  Duration deadline_max = std::chrono::seconds(10);
};

class GrantRooms final : public Part {
 public:
  GrantRooms(Cluster& cluster, GrantRoomOptions options);
  ~GrantRooms() override;

  [[nodiscard]] std::size_t pending() const { return rooms_.size(); }
  [[nodiscard]] std::uint64_t succeeded() const { return ok_; }
  [[nodiscard]] std::uint64_t failed() const { return failed_; }

  void on_started(Instance& instance) override;
  void on_killed(Instance& instance) override;
  void on_step() override;

  static std::size_t pool_bytes();

 private:
  struct Room;
  struct Life;

  void open_room();
  void send(const std::shared_ptr<Room>& room);
  void steal(Room& room);
  void look_at(const std::shared_ptr<Room>& room);
  void end_receiver(Room& room, memory::GrantEnd how);
  void end_sender(Room& room, const Status& status);

  Cluster& cluster_;
  const GrantRoomOptions options_;
  Dice dice_;
  Arrivals arrivals_;
  Lives<Life> lives_;
  std::vector<std::shared_ptr<Room>> rooms_;
  std::uint64_t numbers_ = 0;
  std::uint64_t ok_ = 0;
  std::uint64_t failed_ = 0;
};

}  // namespace kvmend::sim
