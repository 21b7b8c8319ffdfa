#include "sim/scenario_run.h"

#include <fmt/format.h>

#include "sim/content.h"

namespace kvmend::sim {
namespace {

using namespace std::chrono_literals;

constexpr Duration kLoad = 6s;     // load and troubles
constexpr Duration kSettle = 20s;  // longer than every deadline
constexpr Duration kIdle = 75s;    // longer than every idle timeout

std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 0;
  for (const char c : text) hash = mix(hash, static_cast<unsigned char>(c));
  return hash;
}

ClusterOptions random_options(std::uint64_t seed, const Shape& shape) {
  Dice dice(mix(seed, 0x0907));
  ClusterOptions options;
  options.pool_bytes = shape.pool;
  EngineOptions& engine = options.engine;
  engine.chunk_bytes = 4'096;
  engine.window_chunks = static_cast<std::uint32_t>(1 + dice.below(8));
  engine.window_bytes = engine.chunk_bytes * (1 + dice.below(8));
  engine.tcp.data_lanes = static_cast<int>(1 + dice.below(3));
  engine.tcp.send_buffer_bytes = static_cast<int>(1'024 << dice.below(6));
  engine.tcp.receive_buffer_bytes = static_cast<int>(1'024 << dice.below(6));
  engine.recovery.idle_timeout = std::chrono::milliseconds(5'000);
  if (shape.long_idle) engine.recovery.idle_timeout = std::chrono::hours(1);
  options.world.delay = std::chrono::microseconds(20 + dice.below(2'000));
  options.world.jitter = std::chrono::microseconds(10 + dice.below(500));
  options.world.max_segment_bytes = 512U << dice.below(7);
  options.world.short_io_probability = 0.1 * static_cast<double>(dice.below(4));
  if (dice.chance(0.3))
    options.world.bytes_per_second = 1e6 * static_cast<double>(1 + dice.below(20));
  if (shape.slow_link > 0) {
    options.world.bytes_per_second = shape.slow_link;
    options.world.max_segment_bytes = 512;
  }
  if (shape.tight) {
    engine.window_chunks = 1;
    engine.window_bytes = engine.chunk_bytes;
    engine.tcp.data_lanes = 1;
    engine.tcp.send_buffer_bytes = static_cast<int>(256 + dice.below(1'024));
    engine.tcp.receive_buffer_bytes = static_cast<int>(256 + dice.below(1'024));
    options.world.bytes_per_second = 0;
    options.world.delay = std::chrono::microseconds(20 + dice.below(200));
  }
  return options;
}

}  // namespace

Run::Run(std::string_view scenario, std::uint64_t seed, const Shape& shape)
    : shape_(shape),
      cluster_(std::make_unique<Cluster>(mix(seed, hash_of(scenario)),
                                         random_options(mix(seed, hash_of(scenario)), shape))),
      reach_(std::make_unique<Reach>(*cluster_)),
      monitor_(std::make_unique<Monitor>(*cluster_, *reach_)) {}

KvRooms& Run::add_kv(KvRoomsOptions options) {
  options.prefill = shape_.prefill;
  options.from = 10ms;
  options.until = kLoad;
  options.kv.room_deadline = shape_.tight ? Duration(15s) : Duration(6s);
  options.kv.announced_ttl = 6s;
  kv_ = std::make_unique<KvRooms>(*cluster_, options);
  return *kv_;
}

PairRooms& Run::add_pairs() {
  PairRoomsOptions options{.prefill = shape_.prefill, .decode = shape_.decode};
  options.from = 10ms;
  options.until = kLoad;
  options.kv.room_deadline = 6s;
  options.kv.announced_ttl = 6s;
  options.kv.parked_share_per_session = 1;
  options.kv.parked_share = 1;
  pairs_ = std::make_unique<PairRooms>(*cluster_, options);
  return *pairs_;
}

GrantRooms& Run::add_grant_rooms(GrantRoomOptions options) {
  options.from = 10ms;
  options.until = kLoad;
  grant_rooms_ = std::make_unique<GrantRooms>(*cluster_, options);
  return *grant_rooms_;
}

RawLoad& Run::add_raw(RawOptions options) {
  options.from = 10ms;
  options.until = kLoad;
  raw_ = std::make_unique<RawLoad>(*cluster_, options);
  return *raw_;
}

void Run::add_chaos(std::vector<Trouble> menu, Duration mean_gap, Duration longest) {
  chaos_ = std::make_unique<Chaos>(*cluster_, *reach_,
                                   ChaosOptions{.menu = std::move(menu),
                                                .from = 100ms,
                                                .until = kLoad,
                                                .mean_gap = mean_gap,
                                                .longest = longest});
}

void Run::add_ghost() {
  ghost_ = std::make_unique<Ghost>(*cluster_, GhostOptions{.from = 50ms, .until = kLoad});
}

void Run::run_phases() {
  for (std::size_t i = 0; i < shape_.prefill + shape_.decode; ++i) cluster_->add_node();
  for (const auto& node : cluster_->nodes()) node->start();
  Verdict& verdict = cluster_->verdict();
  // The load ends while faults go on; then they end too.
  cluster_->run_for(kLoad + 2s);
  if (verdict.broken()) return;
  if (chaos_) chaos_->end_all();
  cluster_->run_for(kSettle);
  if (verdict.broken()) return;
  const auto need_none = [&](std::size_t left, const char* what) {
    if (left > 0)
      verdict.report(3, fmt::format("{} {} haven't ended long after every deadline", left, what));
  };
  if (kv_) need_none(kv_->pending(), "rooms");
  if (grant_rooms_) need_none(grant_rooms_->pending(), "rooms");
  if (pairs_) need_none(pairs_->pending(), "rooms");
  if (raw_) need_none(raw_->pending(), "transfers");
  if (raw_) raw_->finish();
  monitor_->stop();
  cluster_->run_for(kIdle);
  if (verdict.broken()) return;
  if (kv_) kv_->check_idle();
  if (pairs_) pairs_->check_idle();
  monitor_->check_idle();
}

void Run::complete(Report& report) {
  if (kv_) kv_->tear_down();
  if (pairs_) pairs_->tear_down();
  if (ghost_) ghost_->finish();
  report.trace_hash = cluster_->world().trace_hash();
  report.steps = cluster_->steps();
  report.virtual_seconds = to_seconds(cluster_->world().now().time_since_epoch());
  report.restarts = cluster_->restarts();
  report.aborts = cluster_->aborts();
  report.slowest_recovery_seconds = to_seconds(monitor_->slowest_recovery());
  if (cluster_->verdict().broken()) report.violation = cluster_->verdict().first();
}

}  // namespace kvmend::sim
