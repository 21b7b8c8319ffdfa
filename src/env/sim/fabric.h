// The wires between simulated hosts: delay, bandwidth, loss, and whatever a test scripts.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "env/sim/core.h"
#include "env/sim/packet.h"

namespace kvmend::env::sim {

class SimHost;

/// Any host, in the place of an IP in `set_fault`.
inline constexpr const char* kAnyHost = "*";

/// Single-threaded.
class SimFabric {
 public:
  explicit SimFabric(SimCore& core) : core_(core) {}

  /// From now on `fault` meets packets from one IP to another (not back). Exact pairs win over
  /// (from, any), that over (any, to), that over (any, any). Loopback traffic is never hit.
  void set_fault(const std::string& from, const std::string& to, const Fault& fault);
  void clear_fault(const std::string& from, const std::string& to);
  /// The same in both directions.
  void set_fault_between(const std::string& a, const std::string& b, const Fault& fault);
  /// Both directions drop everything, until `heal`.
  void partition(const std::string& a, const std::string& b);
  void heal(const std::string& a, const std::string& b);
  void clear_all_faults() { faults_.clear(); }

  /// Resets every standing connection between the two hosts on both ends (`kAnyHost` as `b`: all of
  /// `a`). Returns how many.
  std::size_t reset_connections(const std::string& a, const std::string& b);

  // For the hosts.

  void attach(SimHost& host);
  /// Sends a packet. Packets of one connection keep their order: none arrives before
  /// `not_before`, which is moved on.
  void send(SimHost& from, Packet packet, Time& not_before);

 private:
  [[nodiscard]] const Fault* fault_of(const std::string& from, const std::string& to) const;
  [[nodiscard]] bool is_lost(const Fault& fault, const Packet& packet);
  Time arrival_of(const Packet& packet, const Fault* fault, bool loopback);
  void deliver(const std::string& to, const Packet& packet);

  SimCore& core_;
  std::map<std::string, SimHost*> hosts_;
  std::map<std::pair<std::string, std::string>, Fault> faults_;
  struct Link {
    Time free{};      // busy until
    double rate = 0;  // bytes per second, of what it is busy with
  };
  std::map<std::pair<std::string, std::string>, Link> links_;  // those with a bandwidth
};

}  // namespace kvmend::env::sim
