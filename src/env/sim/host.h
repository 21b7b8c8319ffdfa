// A simulated machine: its ports and the kernel's side of its connections, which go on while a
// process is stopped.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "env/sim/core.h"
#include "env/sim/endpoint.h"
#include "env/sim/fabric.h"
#include "env/sim/packet.h"

namespace kvmend::env::sim {

class SimProcess;

/// A port that listens, with the connections that nobody has accepted yet.
struct ListeningPort {
  EndpointOptions options;
  std::deque<std::shared_ptr<Endpoint>> queue;
  std::function<void()> observer;  ///< something was queued
};

/// Single-threaded. Owned by the world, like its processes.
class SimHost {
 public:
  SimHost(SimCore& core, SimFabric& fabric, std::string ip);
  ~SimHost();
  SimHost(const SimHost&) = delete;
  SimHost& operator=(const SimHost&) = delete;

  [[nodiscard]] const std::string& ip() const { return ip_; }
  [[nodiscard]] bool is_up() const { return up_; }

  /// Starts a process. A dead one stays as it is: to restart means to start another.
  SimProcess& start_process(std::string name);

  /// The plug is pulled: the processes are gone and nobody is told. Packets vanish until
  /// `power_on`, after which old peers get resets.
  void power_off();
  void power_on() { up_ = true; }

  /// The range of local ports of outgoing connections (and of listeners at port 0).
  void set_ephemeral_ports(std::uint16_t first, std::uint16_t last);

  /// Standing connections, as (local, remote).
  [[nodiscard]] std::vector<std::pair<Address, Address>> connections() const;
  [[nodiscard]] std::size_t connection_count() const { return endpoints_.size(); }

  // For processes, endpoints and the fabric.

  /// Null when the port is taken. `port` 0 picks one.
  ListeningPort* open_port(std::uint16_t& port, const EndpointOptions& options);
  /// Waiting connections are reset.
  void close_port(std::uint16_t port);
  /// Null when no local port is free.
  std::shared_ptr<Endpoint> connect(const Address& to, const EndpointOptions& options);
  /// Queues a connection whose handshake is complete. False when it can't be for now (backlog
  /// full: as if its packet were lost) or at all (the port is closed: it is reset).
  bool admit(const std::shared_ptr<Endpoint>& endpoint);
  void send(Packet packet, Time& not_before) { fabric_.send(*this, std::move(packet), not_before); }
  void receive(const Packet& packet);
  void forget(const Endpoint& endpoint);
  void reset_connection(const Address& local, const Address& remote);
  [[nodiscard]] Duration clock_offset() const { return clock_offset_; }

 private:
  using Key = std::pair<Address, Address>;
  void receive_syn(const Packet& packet);
  void answer_with_reset(const Packet& packet);
  [[nodiscard]] bool is_used(std::uint16_t port, const Address& remote) const;
  std::uint16_t next_ephemeral();

  SimCore& core_;
  SimFabric& fabric_;
  const std::string ip_;
  const Duration clock_offset_;  // its monotonic clock differs from every other's
  bool up_ = true;
  std::uint16_t first_port_ = 32'768;
  std::uint16_t last_port_ = 60'999;
  std::uint16_t last_used_port_;
  std::map<std::uint16_t, std::unique_ptr<ListeningPort>> ports_;
  std::map<Key, std::shared_ptr<Endpoint>> endpoints_;
  std::vector<std::unique_ptr<SimProcess>> processes_;
};

}  // namespace kvmend::env::sim
