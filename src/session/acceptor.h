// The receiving side of other engines' sessions: handshakes, epochs, fencing, control messages.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/config.h"
#include "base/log.h"
#include "env/event_loop.h"
#include "env/network.h"
#include "memory/region_table.h"
#include "session/inbound_peers.h"
#include "session/self.h"
#include "transport/lane.h"

namespace kvmend::session {

/// What the acceptor reports. Loop thread.
class AcceptorEvents {
 public:
  virtual ~AcceptorEvents() = default;
  /// The engine that listens at `session_id` introduced itself (over any kind of lane). A hint that
  /// it lives, no proof of who answers there.
  virtual void on_peer_hello(const std::string& session_id, Incarnation incarnation) = 0;
  /// Somebody in that engine's name says that it goes. Its word on our own lanes counts, not this.
  virtual void on_peer_goodbye(const std::string& session_id, const std::string& reason) = 0;
  virtual void on_upper(const std::string& from, Incarnation sender, std::uint32_t kind,
                        Bytes body) = 0;
  virtual void on_notify(Notification notification) = 0;
};

/// Loop thread. Owns every inbound lane. Safety: an epoch is accepted only when it is higher than
/// all seen from that incarnation, and the older lanes are closed before the answer leaves.
class Acceptor final : public transport::AcceptObserver, private transport::LaneObserver {
 public:
  Acceptor(env::EventLoop& loop, env::Random& random, const Self& self,
           const memory::RegionTable& regions, AcceptorEvents& events);
  ~Acceptor() override;

  void on_inbound_lane(std::unique_ptr<transport::Lane> lane) override;
  bool on_out_of_descriptors() override { return shed_oldest_pending(); }

  /// Tells every initiator which regions the standing grant opens now.
  void announce_regions();
  /// Refuses new epochs and probes from now on (shutdown).
  void stop_accepting() { accepting_ = false; }
  /// Tells every initiator that this engine is going away.
  void say_goodbye(const std::string& reason);
  void close_all();

  [[nodiscard]] std::size_t lanes() const { return lanes_.size(); }
  [[nodiscard]] std::size_t peers() const { return peers_.size(); }

 private:
  using Peer = InboundPeer;
  struct LaneEntry {
    std::unique_ptr<transport::Lane> lane;
    Incarnation peer;  // unset before the hello
    wire::LaneKind kind{};
    Time since{};
    std::uint64_t progress = 0;  // at the last sweep, of probe lanes
  };

  void on_hello(transport::Lane& lane, const wire::Hello& hello) override;
  void on_control(transport::Lane& lane, std::uint64_t seq, Bytes body) override;
  void on_lane_down(transport::Lane& lane, const Status& why) override;

  void open_epoch(transport::Lane& lane, const wire::Hello& hello, wire::HelloAck ack);
  void join_epoch(transport::Lane& lane, const wire::Hello& hello, wire::HelloAck ack);
  void accept_probe(transport::Lane& lane, const wire::Hello& hello, wire::HelloAck ack);
  void reject(transport::Lane& lane, Code code, std::string message, std::uint64_t epoch_seen = 0);
  void handle(Peer& peer, const wire::Control& control);
  void end_probe(const transport::Lane& lane);
  void drop_epoch(Peer& peer);
  void drop(transport::Lane& lane);
  void send_regions(transport::Lane& lane);
  void serve_tables();
  void shed_pending();
  bool shed_oldest_pending();
  void sweep();
  void arm_sweep();

  LogLimiter protocol_log_{config::kLogInterval};
  env::EventLoop& loop_;
  env::Random& random_;
  const Self& self_;
  const memory::RegionTable& regions_;
  AcceptorEvents& events_;
  std::unordered_map<const transport::Lane*, LaneEntry> lanes_;
  InboundPeers peers_{config::kMaxInboundPeers};
  std::deque<const transport::Lane*> pending_;  // no hello yet, oldest first
  std::size_t probe_lanes_ = 0;
  std::unordered_map<std::string, std::size_t> probe_hosts_;  // of them, by the prober's address
  env::ScopedTimer sweep_timer_;
  env::ScopedTimer table_timer_;
  bool accepting_ = true;
  bool serving_tables_ = false;
  bool table_changed_ = false;  // everybody is to get it
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace kvmend::session
