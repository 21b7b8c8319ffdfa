// Requests through the KV manager, as serving systems make them: decode announces pages, prefill
// sends them in chunks with aux and state last; either side may abort at any moment.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "kvmend/kv.h"
#include "sim/cluster.h"
#include "sim/kv_port.h"
#include "sim/load.h"
#include "sim/one_sided.h"

namespace kvmend::sim {

struct KvRoomsOptions {
  std::size_t prefill = 2;  ///< nodes 0 ... prefill-1; the others decode
  Duration from{};
  Duration until{};
  Duration gap = std::chrono::milliseconds(60);
  Duration late = std::chrono::milliseconds(400);  ///< at most, of one side behind the other
  KvOptions kv;
  bool corrupt_links = false;
  double abort_share = 0.2;
  Duration abort_within = std::chrono::milliseconds(1'500);
  bool decode_aborts = false;  ///< all of them, and the pages must be free within `release_within`
  Duration release_within = std::chrono::milliseconds(50);
  double no_sender_share = 0.04;             ///< rooms that prefill never hears of from its caller
  double twin_share = 0.03;                  ///< a second receiver for a live room (case B1)
  std::optional<OneSidedOptions> one_sided;  ///< pages are written past the checks
};

class KvRooms final : public Part {
 public:
  KvRooms(Cluster& cluster, KvRoomsOptions options);
  ~KvRooms() override;

  [[nodiscard]] std::size_t pending() const { return rooms_.size(); }
  [[nodiscard]] std::uint64_t succeeded() const { return ok_; }
  [[nodiscard]] std::uint64_t failed() const { return failed_; }
  /// Rooms that decode aborted while bytes were under way.
  [[nodiscard]] std::uint64_t aborted_midway() const { return aborted_midway_; }
  /// Pieces of one-sided writes that landed after their write had been given up.
  [[nodiscard]] std::uint64_t landed_late() const { return wire_ ? wire_->landed_late() : 0; }
  /// Every room has ended long ago: the managers must be empty.
  void check_idle();
  /// Ends the managers, so that what they hold isn't taken for a leak.
  void tear_down();

  void on_started(Instance& instance) override;
  void on_killed(Instance& instance) override;
  void on_step() override;

  static std::size_t pool_bytes();

 private:
  struct Life;
  struct Room;

  void open_room();
  void announce(const std::shared_ptr<Room>& room);
  void start_sender(const std::shared_ptr<Room>& room);
  void send_chunk(const std::shared_ptr<Room>& room);
  void plan_aborts(const std::shared_ptr<Room>& room);
  void look_at_receiver(Room& room);
  void look_at_sender(Room& room);
  template <class End>
  void give_up(End& end, bool clear);
  void abort_at_decode(Room& room, Life& life, bool clear);
  void check_release(const Room& room, const Life& life);
  void check_deadline(Room& room, Life& life, Time started, const char* who);
  void check_reason(const Status& why, const char* who);
  [[nodiscard]] std::uint64_t seed_of(const Life& life, RoomId room, std::size_t component,
                                      std::size_t buffer, std::uint32_t page) const;

  Cluster& cluster_;
  const KvRoomsOptions options_;
  Dice dice_;
  Arrivals arrivals_;
  std::optional<OneSidedWire> wire_;
  Lives<Life> lives_;
  std::vector<std::shared_ptr<Room>> rooms_;
  std::uint64_t numbers_ = 0;
  std::uint64_t ok_ = 0;
  std::uint64_t failed_ = 0;
  std::uint64_t aborted_midway_ = 0;
};

}  // namespace kvmend::sim
