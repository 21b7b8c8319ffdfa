// The Prometheus metrics of one engine. docs/operations.md says what each is good for.
#pragma once

#include <memory>
#include <string>

#include "kv/room_events.h"
#include "kvmend/engine.h"
#include "session/events.h"

namespace kvmend::metrics {

/// Rooms of a role that are over and whose pages wait for a proof.
struct Quarantined {
  std::uint64_t rooms = 0;
  std::uint64_t pages = 0;
  bool full = false;  ///< new rooms are refused
};

/// Counts what sessions and rooms report (loop thread) and writes it out (any thread). The data
/// path itself isn't touched: byte counts come from `EngineStats` when somebody asks.
class Metrics final : public session::SessionEvents, public kv::RoomEvents {
 public:
  Metrics();
  ~Metrics() override;
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  /// The text exposition format, with `stats` and `sessions` as of now. Any thread.
  [[nodiscard]] std::string expose(const EngineStats& stats,
                                   const std::vector<SessionInfo>& sessions);
  /// Any thread.
  [[nodiscard]] Quarantined quarantined(KvRole role) const;

  void on_recovered(const std::string& session_id, const health::Recovery& recovery) override;
  void on_session_state(const std::string& session_id, health::State from, health::State to,
                        const Status& cause) override;
  void on_peer_incarnation(const std::string& session_id, Incarnation before,
                           Incarnation now) override;
  void on_transfer_done(const session::TransferState& transfer, const Status& result,
                        Time now) override;
  void on_chunk_retry(const std::string& session_id) override;
  void on_probe_done(const std::string& session_id, const Status& result) override;
  void on_self_suspicion(bool suspected) override;
  void on_room_done(const kv::RoomDone& done) override;
  void on_room_counts(KvRole role, std::size_t rooms, std::size_t announced) override;
  void on_quarantine(KvRole role, std::size_t rooms, std::uint64_t pages, bool full) override;
  void on_quarantine_released(KvRole role, memory::Release how) override;

 private:
  struct Handles;
  const std::unique_ptr<Handles> handles_;
};

}  // namespace kvmend::metrics
