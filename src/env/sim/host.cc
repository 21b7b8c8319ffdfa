#include "env/sim/host.h"

#include <algorithm>
#include <cerrno>

#include "base/check.h"
#include "env/sim/process.h"

namespace kvmend::env::sim {
namespace {
constexpr std::uint64_t kMaxBootSeconds = 10'000'000;
}

SimHost::SimHost(SimCore& core, SimFabric& fabric, std::string ip)
    : core_(core),
      fabric_(fabric),
      ip_(std::move(ip)),
      clock_offset_(std::chrono::seconds(1 + core.random.below(kMaxBootSeconds))),
      last_used_port_(static_cast<std::uint16_t>(
          first_port_ + core.random.below(static_cast<std::uint64_t>(last_port_ - first_port_)))) {}

SimHost::~SimHost() = default;

SimProcess& SimHost::start_process(std::string name) {
  KVM_CHECK(up_, "start_process on a host without power");
  processes_.push_back(std::make_unique<SimProcess>(core_, *this, std::move(name)));
  return *processes_.back();
}

void SimHost::power_off() {
  up_ = false;  // first: what the processes' end makes us send goes nowhere
  for (const auto& process : processes_) process->kill();
  const auto gone = std::exchange(endpoints_, {});
  for (const auto& [key, endpoint] : gone) endpoint->fail(ECONNRESET);
}

void SimHost::set_ephemeral_ports(std::uint16_t first, std::uint16_t last) {
  KVM_CHECK(first > 0 && first <= last);
  first_port_ = first;
  last_port_ = last;
  last_used_port_ = last;
}

std::vector<std::pair<Address, Address>> SimHost::connections() const {
  std::vector<Key> keys;
  keys.reserve(endpoints_.size());
  for (const auto& [key, endpoint] : endpoints_) keys.push_back(key);
  return keys;
}

// ------------------------------------------------------------------------------------------- ports

std::uint16_t SimHost::next_ephemeral() {
  last_used_port_ = last_used_port_ >= last_port_ || last_used_port_ < first_port_
                        ? first_port_
                        : static_cast<std::uint16_t>(last_used_port_ + 1);
  return last_used_port_;
}

bool SimHost::is_used(std::uint16_t port, const Address& remote) const {
  if (ports_.contains(port)) return true;
  return std::ranges::any_of(endpoints_, [&](const auto& entry) {
    return entry.first.first.port == port && entry.first.second == remote;
  });
}

ListeningPort* SimHost::open_port(std::uint16_t& port, const EndpointOptions& options) {
  for (int tries = last_port_ - first_port_; port == 0 && tries >= 0; --tries) {
    const std::uint16_t candidate = next_ephemeral();
    if (!ports_.contains(candidate)) port = candidate;
  }
  if (port == 0 || ports_.contains(port)) return nullptr;
  auto& slot = ports_[port];
  slot = std::make_unique<ListeningPort>();
  slot->options = options;
  return slot.get();
}

void SimHost::close_port(std::uint16_t port) {
  const auto found = ports_.find(port);
  if (found == ports_.end()) return;
  const auto gone = std::move(found->second);
  ports_.erase(found);
  for (const auto& endpoint : gone->queue) endpoint->close(/*reset=*/true);
}

std::shared_ptr<Endpoint> SimHost::connect(const Address& to, const EndpointOptions& options) {
  const Address remote = to.is_loopback() ? Address{ip_, to.port} : to;
  for (int tries = last_port_ - first_port_; tries >= 0; --tries) {
    const std::uint16_t port = next_ephemeral();
    if (is_used(port, remote)) continue;
    const Address local{ip_, port};
    auto endpoint =
        std::make_shared<Endpoint>(core_, *this, local, remote, Endpoint::State::kSynSent, options);
    endpoints_[{local, remote}] = endpoint;
    endpoint->start_connecting();
    return endpoint;
  }
  return nullptr;
}

bool SimHost::admit(const std::shared_ptr<Endpoint>& endpoint) {
  const auto found = ports_.find(endpoint->local().port);
  if (found == ports_.end()) {
    endpoint->close(/*reset=*/true);
    return false;
  }
  ListeningPort& port = *found->second;
  if (port.queue.size() >= core_.options.backlog) {
    core_.note("backlog full", endpoint->local().port);
    return false;
  }
  port.queue.push_back(endpoint);
  if (port.observer) port.observer();
  return true;
}

// ----------------------------------------------------------------------------------------- packets

void SimHost::receive(const Packet& packet) {
  const auto found = endpoints_.find({packet.to, packet.from});
  if (found != endpoints_.end()) {
    const std::shared_ptr<Endpoint> endpoint = found->second;
    const bool reopens =
        packet.kind == Packet::Kind::kSyn && endpoint->state() == Endpoint::State::kEstablished;
    if (!reopens) return endpoint->receive(packet);
    // The peer has forgotten this connection (it lost power) and uses its port again.
    endpoint->fail(ECONNRESET);
  }
  if (packet.kind == Packet::Kind::kSyn) return receive_syn(packet);
  if (packet.kind != Packet::Kind::kReset) answer_with_reset(packet);
}

void SimHost::receive_syn(const Packet& packet) {
  const auto port = ports_.find(packet.to.port);
  if (port == ports_.end()) return answer_with_reset(packet);
  if (port->second->queue.size() >= core_.options.backlog) {
    core_.note("backlog full", packet.to.port);
    return;
  }
  auto endpoint = std::make_shared<Endpoint>(core_, *this, packet.to, packet.from,
                                             Endpoint::State::kSynReceived, port->second->options);
  endpoints_[{packet.to, packet.from}] = endpoint;
  endpoint->send_syn_ack();
}

void SimHost::answer_with_reset(const Packet& packet) {
  Time at_once{};
  send({.kind = Packet::Kind::kReset, .from = packet.to, .to = packet.from}, at_once);
}

void SimHost::forget(const Endpoint& endpoint) {
  // Only itself: a new connection may have taken its place.
  const auto found = endpoints_.find({endpoint.local(), endpoint.remote()});
  if (found != endpoints_.end() && found->second.get() == &endpoint) endpoints_.erase(found);
}

void SimHost::reset_connection(const Address& local, const Address& remote) {
  const auto found = endpoints_.find({local, remote});
  if (found == endpoints_.end()) return;
  const std::shared_ptr<Endpoint> endpoint = found->second;
  endpoint->fail(ECONNRESET);
}

}  // namespace kvmend::env::sim
