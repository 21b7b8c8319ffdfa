// How fast the KV manager moves requests: latency and rate of each case, beside what the engine
// alone makes of the same slices, alternating between the same two processes.
#include <sys/mman.h>

#include <algorithm>
#include <thread>

#include "kv_bench.h"
#include "pair.h"

namespace kvmend::bench {
namespace {

using std::chrono::seconds;

constexpr std::size_t kMaxRequests = 1U << 16U;
constexpr std::uint64_t kPrefillSide = 11;
constexpr std::uint64_t kDecodeSide = 22;

/// Times of each request of a round, by CLOCK_MONOTONIC; shared between both processes.
struct Times {
  double start[kMaxRequests];
  double decode_done[kMaxRequests];
  double prefill_done[kMaxRequests];
};

template <class Body>
void each_slot(std::uint32_t count, Body body) {
  if (count == 1) return body(0U);
  std::vector<std::jthread> threads;
  for (std::uint32_t slot = 0; slot < count; ++slot) threads.emplace_back([=] { body(slot); });
}

class Speed {
 public:
  Speed(KvShape shape, const KvSettings& settings)
      : shape_(std::move(shape)), settings_(settings), pair_(settings.pin) {
    void* at =
        mmap(nullptr, sizeof(Times), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) stop_bench("mmap");
    times_ = new (at) Times;
  }
  ~Speed() { munmap(times_, sizeof(Times)); }
  Speed(const Speed&) = delete;
  Speed& operator=(const Speed&) = delete;

  nlohmann::json run() {
    pair_.fork_child([this] { decode(); });
    prefill();
    const bool ok = pair_.join();
    row_["ok"] = ok;
    if (!ok) row_["error"] = "decode found wrong bytes or a room failed";
    return row_;
  }

 private:
  [[nodiscard]] RoomId room(int round, std::uint32_t slot, std::uint32_t request) const {
    return RoomId((static_cast<std::uint64_t>(round + 1) << 32U) + slot +
                  std::uint64_t{request} * shape_.concurrency);
  }
  [[nodiscard]] std::uint32_t per_slot() const { return shape_.requests / shape_.concurrency; }

  // ---- decode
  void decode() {
    const auto engine = bench_engine(settings_.local, 0, shape_.stage_below);
    BenchPool pool(shape_, *engine);
    auto manager = KvManager::create(*engine, KvRole::kDecode, pool.layout());
    if (!manager) stop_bench(manager.error().to_string());
    pair_.barrier();  // prefill's session id is in its place
    const std::string prefill = pair_.shared().text;
    pair_.barrier();
    std::snprintf(pair_.shared().text, sizeof pair_.shared().text, "%s",
                  engine->session_id().c_str());
    pair_.shared().numbers[0] = reinterpret_cast<std::uint64_t>(pool.page(0, 0));
    pair_.barrier();
    for (int round = -1; round < settings_.rounds; ++round) {
      pair_.barrier();
      each_slot(shape_.concurrency,
                [&](std::uint32_t slot) { decode_slot(**manager, pool, prefill, round, slot); });
      pair_.barrier();
      pair_.barrier();  // the engine alone
    }
    pair_.barrier();
  }

  void decode_slot(KvManager& manager, BenchPool& pool, const std::string& prefill, int round,
                   std::uint32_t slot) {
    const std::vector<std::uint32_t> pages = pool.pages_of(slot, kDecodeSide);
    for (std::uint32_t i = 0; i < per_slot(); ++i) {
      const bool last = i + 1 == per_slot();
      if (last) pool.wipe(pages);
      const std::uint32_t index = slot + i * shape_.concurrency;
      times_->start[index] = now_seconds();
      KvReceiver receiver(manager, prefill, room(round, slot, i));
      receiver.init();
      const Status announced = receiver.send_metadata(pages, slot);
      if (!announced.is_ok()) stop_bench(announced.to_string());
      if (receiver.wait(seconds(30)) != KvStatus::kSuccess)
        stop_bench("decode: " + receiver.failure().to_string());
      times_->decode_done[index] = now_seconds();
      if (last && !pool.holds(pages, slot)) pair_.shared().failed.store(1);
    }
  }

  // ---- prefill
  void prefill_slot(KvManager& manager, const BenchPool& pool, int round, std::uint32_t slot) {
    const std::vector<std::uint32_t> pages = pool.pages_of(slot, kPrefillSide);
    for (std::uint32_t i = 0; i < per_slot(); ++i) {
      KvSender sender(manager, room(round, slot, i));
      Status status = sender.init(shape_.pages, slot);
      if (status.is_ok()) status = sender.send(pages);
      if (!status.is_ok()) stop_bench(status.to_string());
      if (sender.wait(seconds(30)) != KvStatus::kSuccess)
        stop_bench("prefill: " + sender.failure().to_string());
      times_->prefill_done[slot + i * shape_.concurrency] = now_seconds();
    }
  }

  void engine_slot(Engine& engine, const BenchPool& pool, std::uint32_t slot, std::uint32_t count) {
    const std::vector<std::uint32_t> from = pool.pages_of(slot, kPrefillSide);
    const std::vector<std::uint32_t> to = pool.pages_of(slot, kDecodeSide);
    std::vector<Slice> slices;
    for (std::uint32_t b = 0; b < shape_.buffers; ++b)
      for (std::size_t i = 0; i < from.size(); ++i) {
        slices.push_back({pool.page(b, from[i]),
                          pair_.shared().numbers[0] + pool.decode_offset(b, to[i]),
                          shape_.item_bytes});
      }
    for (std::uint32_t i = 0; i < count; ++i) {
      const Status status = engine.transfer(decode_session_, Opcode::kWrite, slices, {});
      if (!status.is_ok()) stop_bench("engine: " + status.to_string());
    }
  }

  void prefill() {
    const auto engine = bench_engine(settings_.local, 0, shape_.stage_below);
    BenchPool pool(shape_, *engine, KvRole::kPrefill);
    for (std::uint32_t slot = 0; slot < shape_.concurrency; ++slot)
      pool.fill(pool.pages_of(slot, kPrefillSide), slot);
    auto manager = KvManager::create(*engine, KvRole::kPrefill, pool.layout());
    if (!manager) stop_bench(manager.error().to_string());
    std::snprintf(pair_.shared().text, sizeof pair_.shared().text, "%s",
                  engine->session_id().c_str());
    pair_.barrier();
    pair_.barrier();
    pair_.barrier();
    decode_session_ = pair_.shared().text;
    if (auto opened = engine->open_session(decode_session_, seconds(5)); !opened)
      stop_bench(opened.error().to_string());
    std::vector<double> latencies, rates, own, ratios;
    for (int round = -1; round < settings_.rounds; ++round) {
      pair_.barrier();
      each_slot(shape_.concurrency,
                [&](std::uint32_t slot) { prefill_slot(**manager, pool, round, slot); });
      pair_.barrier();
      const double kv = static_cast<double>(per_slot() * shape_.concurrency) /
                        (last_done() - *std::min_element(times_->start, times_->start + count()));
      const double engine_began = now_seconds();
      const std::uint32_t repeats = std::max(1U, per_slot() / 2);
      each_slot(shape_.concurrency,
                [&](std::uint32_t slot) { engine_slot(*engine, pool, slot, repeats); });
      const double alone =
          static_cast<double>(repeats * shape_.concurrency) / (now_seconds() - engine_began);
      pair_.barrier();
      if (round < 0) continue;  // warm-up
      rates.push_back(kv);
      own.push_back(alone);
      ratios.push_back(kv / alone);
      for (std::uint32_t i = 0; i < count(); ++i)
        latencies.push_back(std::max(times_->decode_done[i], times_->prefill_done[i]) -
                            times_->start[i]);
    }
    pair_.barrier();
    const double bytes = static_cast<double>(shape_.request_bytes());
    row_ = {{"case", shape_.name},
            {"transport", settings_.local ? "local" : "tcp"},
            {"requests", latencies.size()},
            {"request_bytes", shape_.request_bytes()},
            {"concurrency", shape_.concurrency},
            {"slices", std::uint64_t{shape_.pages} * shape_.buffers},
            {"p50_ms", median(latencies) * 1e3},
            {"p99_ms", percentile(latencies, 0.99) * 1e3},
            {"requests_per_s", median(rates)},
            {"gbps", median(rates) * bytes / 1e9},
            {"engine_gbps", median(own) * bytes / 1e9},
            {"engine_ms", 1e3 * shape_.concurrency / median(own)},
            {"ratio_engine", median(ratios)}};
  }

  [[nodiscard]] std::uint32_t count() const { return per_slot() * shape_.concurrency; }
  [[nodiscard]] double last_done() const {
    return std::max(*std::max_element(times_->decode_done, times_->decode_done + count()),
                    *std::max_element(times_->prefill_done, times_->prefill_done + count()));
  }

  const KvShape shape_;
  const KvSettings& settings_;
  Pair pair_;
  Times* times_ = nullptr;
  std::string decode_session_;
  nlohmann::json row_;
};

}  // namespace

nlohmann::json run_speed(const KvShape& shape, const KvSettings& settings) {
  return Speed(shape, settings).run();
}

}  // namespace kvmend::bench
