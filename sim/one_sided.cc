#include "sim/one_sided.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "sim/content.h"

namespace kvmend::sim {

using namespace std::chrono_literals;

OneSidedWire::OneSidedWire(Cluster& cluster, OneSidedOptions options)
    : cluster_(cluster), options_(options), dice_(mix(cluster.seed(), 0x0517)) {}

Instance* OneSidedWire::find(std::size_t node, std::uint64_t number) const {
  Instance* instance = cluster_.nodes()[node]->instance();
  return instance != nullptr && instance->number() == number ? instance : nullptr;
}

void OneSidedWire::begin(std::shared_ptr<Flight> flight) {
  flights_.push_back(flight);
  if (dice_.chance(options_.fail_share))
    cluster_.after(dice_.skewed(0ms, options_.step * 2), [this, flight] {
      give_up(flight, {Code::kConnectionReset, Origin::kLink, "the endpoint broke"});
    });
  if (dice_.chance(options_.stall_share)) {
    cluster_.after(dice_.skewed(0ms, options_.stall), [this, flight] { schedule(flight); });
  } else {
    schedule(flight);
  }
}

void OneSidedWire::schedule(const std::shared_ptr<Flight>& flight) {
  cluster_.after(dice_.skewed(0ms, options_.step), [this, flight] { land(flight); });
}

void OneSidedWire::land(const std::shared_ptr<Flight>& flight) {
  if (std::ranges::find(flights_, flight) == flights_.end()) return;  // its endpoint is gone
  Instance* from = find(flight->from_node, flight->from);
  Instance* to = find(flight->to_node, flight->to);
  if (from == nullptr) {  // the process's endpoints went with it
    flights_.remove(flight);
    return;
  }
  const transport::Piece& piece = flight->write.pieces[flight->next];
  const memory::Region* region =
      to == nullptr ? nullptr : to->engine().regions().find(piece.region);
  if (region == nullptr || void_.contains({flight->to, flight->write.grant})) {
    flights_.remove(flight);
    return report(*flight, {Code::kPeerRestarted, Origin::kPeer, "remote key refused"});
  }
  std::byte* at = region->base + piece.offset;
  from->pool().on_sent_from(piece.local, piece.length);
  to->pool().on_received_into(at, piece.length);
  std::memcpy(at, piece.local, piece.length);
  to->pool().on_activity();
  if (flight->why) ++landed_late_;
  if (++flight->next < flight->write.pieces.size()) return schedule(flight);
  flights_.remove(flight);
  report(*flight, flight->why.value_or(Status::ok()));
}

void OneSidedWire::give_up(const std::shared_ptr<Flight>& flight, const Status& why) {
  if (flight->why || std::ranges::find(flights_, flight) == flights_.end()) return;
  flight->why = why;
  if (!options_.tells_the_truth) report(*flight, why);  // and goes on
}

void OneSidedWire::report(Flight& flight, const Status& result) {
  Instance* from = find(flight.from_node, flight.from);
  if (from == nullptr || !flight.write.on_done) return;
  from->process().loop().post([port = flight.port, result,
                               on_done = std::exchange(flight.write.on_done, nullptr)]() mutable {
    if (!port.expired()) on_done(result, {});
  });
}

void OneSidedWire::destroy(Instance& here, std::size_t peer) {
  const std::size_t node = here.node().index();
  Flights gone;
  for (auto at = flights_.begin(); at != flights_.end();) {
    const Flight& one = **at;
    const auto next = std::next(at);
    if ((one.from_node == node && one.to_node == peer) ||
        (one.from_node == peer && one.to_node == node))
      gone.splice(gone.end(), flights_, at);
    at = next;
  }
  for (const auto& flight : gone)
    report(*flight,
           flight->why.value_or(Status(Code::kConnectionReset, Origin::kLink, "fenced off")));
}

bool OneSidedPort::fence(const Address& peer, std::move_only_function<void()> done) {
  if (!wire_.options().tells_the_truth) return false;
  Node* node = wire_.cluster_.find(peer.to_string());
  if (node == nullptr) return false;
  for (const GrantId grant : grants()) wire_.void_.emplace(instance().number(), grant);
  wire_.destroy(instance(), node->index());
  loop().post([alive = std::weak_ptr(alive_), done = std::move(done)]() mutable {
    if (!alive.expired()) done();
  });
  return true;
}

kv::WriteId OneSidedPort::write(kv::Write write) {
  const kv::WriteId id(++last_write_);
  auto flight = std::make_shared<OneSidedWire::Flight>();
  flight->id = id;
  flight->from = instance().number();
  flight->from_node = instance().node().index();
  flight->port = alive_;
  flight->write = std::move(write);
  Node* node = wire_.cluster_.find(flight->write.peer.to_string());
  Instance* to = node == nullptr ? nullptr : node->instance();
  if (to == nullptr || to->incarnation() != flight->write.target) {
    wire_.report(*flight,
                 {Code::kPeerRestarted, Origin::kPeer, "peer restarted: no such endpoint"});
    return id;
  }
  flight->to = to->number();
  flight->to_node = node->index();
  loop().post([alive = std::weak_ptr(alive_), begun = std::move(flight->write.on_begun)]() mutable {
    if (!alive.expired() && begun) begun();
  });
  wire_.begin(std::move(flight));
  return id;
}

void OneSidedPort::cancel(kv::WriteId write, const Status& why) {
  for (const auto& flight : wire_.flights_)
    if (flight->id == write && flight->from == instance().number() && flight->port.lock() == alive_)
      return wire_.give_up(std::shared_ptr(flight), why);
}

}  // namespace kvmend::sim
