#include "env/sim/fabric.h"

#include <algorithm>

#include "base/check.h"
#include "env/sim/host.h"

namespace kvmend::env::sim {
namespace {
constexpr std::size_t kHeaderBytes = 60;
}

void SimFabric::set_fault(const std::string& from, const std::string& to, const Fault& fault) {
  faults_[{from, to}] = fault;
}

void SimFabric::clear_fault(const std::string& from, const std::string& to) {
  faults_.erase({from, to});
}

void SimFabric::set_fault_between(const std::string& a, const std::string& b, const Fault& fault) {
  set_fault(a, b, fault);
  set_fault(b, a, fault);
}

void SimFabric::partition(const std::string& a, const std::string& b) {
  set_fault_between(a, b, {.drop_probability = 1});
}

void SimFabric::heal(const std::string& a, const std::string& b) {
  clear_fault(a, b);
  clear_fault(b, a);
}

std::size_t SimFabric::reset_connections(const std::string& a, const std::string& b) {
  const auto host = hosts_.find(a);
  KVM_CHECK(host != hosts_.end(), "reset_connections: unknown host");
  std::size_t count = 0;
  for (const auto& [local, remote] : host->second->connections()) {
    if (b != kAnyHost && remote.host != b) continue;
    host->second->reset_connection(local, remote);
    if (const auto other = hosts_.find(remote.host); other != hosts_.end())
      other->second->reset_connection(remote, local);
    ++count;
  }
  return count;
}

void SimFabric::attach(SimHost& host) {
  const bool added = hosts_.emplace(host.ip(), &host).second;
  KVM_CHECK(added, "two hosts with the same IP");
}

const Fault* SimFabric::fault_of(const std::string& from, const std::string& to) const {
  if (faults_.empty()) return nullptr;
  const std::pair<std::string, std::string> keys[] = {
      {from, to}, {from, kAnyHost}, {kAnyHost, to}, {kAnyHost, kAnyHost}};
  for (const auto& key : keys)
    if (const auto found = faults_.find(key); found != faults_.end()) return &found->second;
  return nullptr;
}

bool SimFabric::is_lost(const Fault& fault, const Packet& packet) {
  const bool opens = packet.kind == Packet::Kind::kSyn || packet.kind == Packet::Kind::kSynAck;
  if (fault.drop_larger_than > 0 && packet.payload.size() > fault.drop_larger_than) return true;
  return core_.random.chance(fault.drop_probability) ||
         (opens && core_.random.chance(fault.drop_syn_probability));
}

void SimFabric::send(SimHost& from, Packet packet, Time& not_before) {
  if (!from.is_up()) return;
  const bool loopback = packet.to.is_loopback() || packet.to.host == from.ip();
  const std::string to = loopback ? from.ip() : packet.to.host;
  const Fault* fault = loopback ? nullptr : fault_of(from.ip(), to);
  core_.note("send", Trace::hash(packet.payload), packet.sequence, packet.ack);
  std::string receiver = to;
  if (fault != nullptr) {
    if (is_lost(*fault, packet)) {
      core_.note("drop", Trace::hash(to), packet.sequence, packet.ack);
      return;
    }
    if (fault->refuse_connections && packet.kind == Packet::Kind::kSyn) {
      // As if sent by the other host: a firewall that rejects.
      packet = {.kind = Packet::Kind::kReset, .from = packet.to, .to = packet.from};
      receiver = from.ip();
    } else if (!packet.payload.empty() && core_.random.chance(fault->corrupt_probability)) {
      const std::uint64_t bit = core_.random.below(packet.payload.size() * 8);
      packet.payload[bit / 8] ^= std::byte{1} << (bit % 8);
    }
  }
  not_before = std::max(not_before, arrival_of(packet, fault, loopback));
  core_.events.add(not_before,
                   [this, host = std::move(receiver), p = std::move(packet)] { deliver(host, p); });
}

Time SimFabric::arrival_of(const Packet& packet, const Fault* fault, bool loopback) {
  if (loopback) return core_.now + core_.options.loopback_delay;
  const Duration extra = fault != nullptr ? fault->extra_delay : Duration::zero();
  const Duration jitter =
      core_.options.jitter + (fault != nullptr ? fault->extra_jitter : Duration::zero());
  Time sent = core_.now;
  const double rate = fault != nullptr && fault->bytes_per_second > 0
                          ? fault->bytes_per_second
                          : core_.options.bytes_per_second;
  if (rate > 0) {
    const auto of_seconds = [](double seconds) {
      return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
    };
    Link& link = links_[{packet.from.host, packet.to.host}];
    // What a slow link had queued leaves at the speed that it has now.
    if (link.free > core_.now && link.rate != rate)
      link.free = core_.now + of_seconds(to_seconds(link.free - core_.now) * link.rate / rate);
    link.rate = rate;
    link.free = std::max(link.free, core_.now) +
                of_seconds(static_cast<double>(packet.payload.size() + kHeaderBytes) / rate);
    sent = link.free;
  }
  const auto late = jitter > Duration::zero()
                        ? Duration(core_.random.below(static_cast<std::uint64_t>(jitter.count())))
                        : Duration::zero();
  return sent + core_.options.delay + extra + late;
}

void SimFabric::deliver(const std::string& to, const Packet& packet) {
  const auto host = hosts_.find(to);
  if (host == hosts_.end() || !host->second->is_up()) {
    core_.note("nowhere", Trace::hash(to), packet.sequence, packet.ack);
    return;
  }
  core_.note("arrive", static_cast<std::uint64_t>(packet.kind), packet.sequence, packet.ack);
  host->second->receive(packet);
}

}  // namespace kvmend::env::sim
