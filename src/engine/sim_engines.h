// Engines in a simulated world, for unit tests: processes with a pool of registered memory, and
// transfers whose end can be looked at. The test says which transport they use.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine_core.h"
#include "env/sim/world.h"

namespace kvmend::engine {

using TransportMakerFn = std::unique_ptr<transport::Transport> (*)(const transport::LaneContext&,
                                                                   env::Network&,
                                                                   const env::StreamOptions&);

/// A transfer of a test, with its result once it is over.
struct Flight {
  std::shared_ptr<session::TransferState> state;
  std::optional<Status> result;
  Time ended_at{};  ///< in the world's time
  [[nodiscard]] bool done() const { return result.has_value(); }
  [[nodiscard]] bool ok() const { return result && result->is_ok(); }
  [[nodiscard]] Code code() const { return result ? result->code() : Code::kUnavailable; }
  [[nodiscard]] std::string text() const { return result ? result->to_string() : "not over"; }
};
using FlightPtr = std::shared_ptr<Flight>;

/// What a test wants of a transfer beyond its slices.
struct FlightPlan {
  Duration deadline = std::chrono::seconds(30);
  bool checksum = false;
  bool urgent = false;
  Incarnation target;
  std::optional<Notification> notify;
};

/// One engine in a process of its own.
class SimEngine {
 public:
  SimEngine(env::sim::SimWorld& world, TransportMakerFn transport, env::sim::SimHost& host,
            const EngineOptions& options, std::size_t pool_bytes)
      : world_(world),
        process_(host.start_process("engine")),
        pool_(pool_bytes),
        core_(std::make_unique<EngineCore>(process_.env(), options, transport, nullptr)) {
    const Status started = core_->start();
    KVM_CHECK(started.is_ok(), started.detail());
    if (pool_bytes > 0) region_ = add_region(pool_.data(), pool_.size());
  }

  [[nodiscard]] EngineCore& core() { return *core_; }
  [[nodiscard]] env::sim::SimProcess& process() { return process_; }
  [[nodiscard]] std::byte* at(std::size_t offset) { return pool_.data() + offset; }
  [[nodiscard]] std::uint64_t address(std::size_t offset) {
    return reinterpret_cast<std::uint64_t>(at(offset));
  }
  [[nodiscard]] std::vector<std::byte>& pool() { return pool_; }
  [[nodiscard]] RegionRef region() const { return region_; }
  [[nodiscard]] session::Session* session(SimEngine& to) {
    return core_->sessions().find(to.core().session_id());
  }
  /// "none" where there is no session.
  [[nodiscard]] std::string state(SimEngine& to) {
    session::Session* found = session(to);
    return found == nullptr ? "none" : std::string(health::state_name(found->state()));
  }

  RegionRef add_region(std::byte* base, std::size_t length, Access access = Access::kReadWrite) {
    const auto ref = core_->register_memory(base, length, MemoryKind::kHost, access);
    KVM_CHECK(ref.has_value());
    return *ref;
  }

  /// Fills the pool so that every place and seed has its own bytes.
  void fill(std::uint64_t seed) {
    env::sim::SimRandom random(seed);
    for (std::size_t i = 0; i + 8 <= pool_.size(); i += 8)
      store_le<std::uint64_t>(pool_.data() + i, random.next());
  }

  /// Slices name addresses, as users of the raw API give them.
  FlightPtr submit(SimEngine& to, Opcode opcode, const std::vector<Slice>& slices,
                   FlightPlan plan = {}) {
    return submit_to(to.core().address(), opcode, slices, std::move(plan));
  }
  FlightPtr submit_to(const Address& to, Opcode opcode, const std::vector<Slice>& slices,
                      FlightPlan plan = {}) {
    auto flight = make_raw(to, opcode, slices, std::move(plan));
    core_->submit(flight->state);
    return flight;
  }
  /// A write for the test to submit.
  FlightPtr prepare(SimEngine& to, const std::vector<Slice>& slices, FlightPlan plan = {}) {
    return make_raw(to.core().address(), Opcode::kWrite, slices, std::move(plan));
  }
  FlightPtr make_raw(const Address& to, Opcode opcode, const std::vector<Slice>& slices,
                     FlightPlan plan) {
    auto flight = make_flight(to, opcode, std::move(plan));
    flight->state->raw = true;
    flight->state->grant = memory::kStandingGrant;
    for (const Slice& slice : slices)
      flight->state->pieces.push_back(
          {static_cast<std::byte*>(slice.local), RegionRef{}, slice.remote, slice.length});
    return flight;
  }
  /// Pieces name regions, under a grant, as the KV manager gives them.
  FlightPtr submit_pieces(SimEngine& to, Opcode opcode, GrantId grant,
                          std::vector<transport::Piece> pieces, FlightPlan plan = {}) {
    auto flight = make_flight(to.core().address(), opcode, std::move(plan));
    flight->state->grant = grant;
    flight->state->pieces = std::move(pieces);
    core_->submit(flight->state);
    return flight;
  }
  void cancel(const FlightPtr& flight) {
    core_->cancel(flight->state, Status(Code::kCancelled, Origin::kCaller, "cancelled"));
  }

  /// SIGKILL.
  void kill(env::sim::KillStyle style = env::sim::KillStyle::kReset) {
    process_.kill(style);
    core_.reset();
  }

 private:
  FlightPtr make_flight(const Address& to, Opcode opcode, FlightPlan plan) {
    auto flight = std::make_shared<Flight>();
    flight->state = std::make_shared<session::TransferState>();
    session::TransferState& state = *flight->state;
    state.peer = to;
    state.opcode = opcode;
    state.target = plan.target;
    state.checksum = plan.checksum;
    state.urgent = plan.urgent;
    state.notify = std::move(plan.notify);
    state.submitted = core_->loop().now();
    state.deadline = state.submitted + plan.deadline;
    state.on_done = [this, weak = std::weak_ptr(flight)](const Status& status) {
      const auto ended = weak.lock();
      if (!ended) return;
      KVM_CHECK(!ended->result, "a transfer ended twice");
      ended->result = status;
      ended->ended_at = world_.now();
    };
    return flight;
  }

  env::sim::SimWorld& world_;
  env::sim::SimProcess& process_;
  std::vector<std::byte> pool_;
  RegionRef region_;
  std::unique_ptr<EngineCore> core_;
};

/// A world with engines at 10.0.0.1, 10.0.0.2, ... port 7000.
class SimEngines {
 public:
  static constexpr std::uint16_t kPort = 7000;

  SimEngines(TransportMakerFn transport, std::uint64_t seed, const env::sim::SimOptions& world = {})
      : world_(seed, world), transport_(transport) {
    options_.insecure = true;
    options_.port = kPort;
    options_.tcp.send_buffer_bytes = 0;  // the world's
    options_.tcp.receive_buffer_bytes = 0;
  }

  /// Of engines that are added from now on.
  EngineOptions& options() { return options_; }
  env::sim::SimWorld& world() { return world_; }
  [[nodiscard]] static std::string ip(std::size_t index) {
    return "10.0.0." + std::to_string(index + 1);
  }

  SimEngine& add(std::size_t pool_bytes = 1U << 20) {
    world_.add_host(ip(engines_.size()));
    engines_.push_back(make(engines_.size(), pool_bytes));
    return *engines_.back();
  }
  SimEngine& operator[](std::size_t index) { return *engines_[index]; }
  /// Kills the engine's process and starts another on the same port, with other memory.
  SimEngine& restart(std::size_t index, std::size_t pool_bytes = 1U << 20) {
    kill(index);
    engines_[index] = make(index, pool_bytes);
    return *engines_[index];
  }
  void kill(std::size_t index) {
    if (!engines_[index]) return;
    engines_[index]->kill();
    dead_.push_back(std::move(engines_[index]));  // its memory stays, to show that nobody uses it
    engines_[index] = nullptr;
  }

  bool run_until(const std::function<bool()>& predicate, Duration limit) {
    return world_.run_until(predicate, limit);
  }
  /// Until all are over.
  bool finish(const std::vector<FlightPtr>& flights, Duration limit = std::chrono::seconds(60)) {
    return world_.run_until(
        [&] {
          for (const FlightPtr& flight : flights)
            if (!flight->done()) return false;
          return true;
        },
        limit);
  }
  void run_for(Duration duration) { world_.run_for(duration); }

 private:
  std::unique_ptr<SimEngine> make(std::size_t index, std::size_t pool_bytes) {
    EngineOptions options = options_;
    options.host = ip(index);
    return std::make_unique<SimEngine>(world_, transport_, world_.host(ip(index)), options,
                                       pool_bytes);
  }

  env::sim::SimWorld world_;
  TransportMakerFn transport_;
  EngineOptions options_;
  std::vector<std::unique_ptr<SimEngine>> engines_;
  std::vector<std::unique_ptr<SimEngine>> dead_;
};

}  // namespace kvmend::engine
