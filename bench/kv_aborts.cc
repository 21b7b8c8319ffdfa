// Aborts in the middle of throttled writes (case I2). Decode aborts at a random moment, takes the
// pages back as soon as the status says so, writes a canary over them as their next user would, and
// looks at it again when the late bytes have had their time.
#include <algorithm>
#include <deque>
#include <optional>
#include <random>
#include <thread>

#include "kv_bench.h"
#include "pair.h"

namespace kvmend::bench {
namespace {

using std::chrono::seconds;

constexpr std::uint64_t kPace = 200'000'000;  // bytes per second of each connection
constexpr double kWatch = 0.1;                // seconds; a whole request takes a fifth of that
constexpr std::uint32_t kSets = 8;            // page sets in turn

class Aborts {
 public:
  explicit Aborts(const KvSettings& settings) : settings_(settings), pair_(settings.pin) {}

  nlohmann::json run() {
    pair_.fork_child([this] { decode(); });
    prefill();
    row_["ok"] = pair_.join() && row_["foreign_bytes"] == 0;
    return row_;
  }

 private:
  static KvShape shape() {  // 4 MiB: 21 ms at that pace
    return {
        .name = "abort", .pages = 16, .buffers = 16, .item_bytes = 16'384, .concurrency = kSets};
  }

  struct Watched {
    std::uint32_t set;
    double until;
  };

  void decode() {
    const auto engine = bench_engine(settings_.local);
    BenchPool pool(shape(), *engine);
    auto manager = KvManager::create(*engine, KvRole::kDecode, pool.layout());
    if (!manager) stop_bench(manager.error().to_string());
    pair_.barrier();
    const std::string prefill = pair_.shared().text;
    std::mt19937_64 random(7);
    std::deque<Watched> watched;
    std::vector<double> release;
    std::uint64_t foreign = 0, midway = 0;
    const auto look = [&](bool all) {
      while (!watched.empty() && (all || watched.front().until <= now_seconds())) {
        if (all)
          std::this_thread::sleep_for(
              std::chrono::duration<double>(watched.front().until - now_seconds()));
        foreign += changed(pool, pool.pages_of(watched.front().set, 2));
        watched.pop_front();
      }
    };
    for (std::uint32_t i = 0; i < settings_.aborts; ++i) {
      const std::uint32_t set = i % kSets;
      while (std::ranges::any_of(watched, [&](const Watched& one) { return one.set == set; }))
        look(watched.size() == kSets - 1);
      const std::vector<std::uint32_t> pages = pool.pages_of(set, 2);
      KvReceiver receiver(**manager, prefill, RoomId(i + 1));
      receiver.init();
      pair_.shared().numbers[0] = i + 1;
      std::atomic_thread_fence(std::memory_order_release);
      if (!receiver.send_metadata(pages, set).is_ok()) stop_bench("metadata");
      receiver.wait_for(KvStatus::kTransferring, seconds(10));
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
      midway += receiver.poll() == KvStatus::kTransferring ? 1 : 0;
      const double asked = now_seconds();
      receiver.abort("the benchmark aborts");
      const KvStatus status = receiver.wait(seconds(10));
      if (status == KvStatus::kSuccess) continue;
      release.push_back(now_seconds() - asked);
      pool.wipe(pages);
      watched.push_back({set, now_seconds() + kWatch});
      look(false);
    }
    while (!watched.empty()) look(true);
    std::uint64_t* numbers = pair_.shared().numbers;
    numbers[1] = foreign;
    numbers[2] = release.size();
    numbers[3] = midway;
    numbers[4] = static_cast<std::uint64_t>(median(release) * 1e9);
    numbers[5] = static_cast<std::uint64_t>(percentile(release, 0.99) * 1e9);
    numbers[6] = static_cast<std::uint64_t>(percentile(release, 1.0) * 1e9);
    numbers[0] = ~0ULL;
    pair_.barrier();
  }

  static std::uint64_t changed(const BenchPool& pool, const std::vector<std::uint32_t>& pages) {
    std::uint64_t sum = 0;
    for (std::uint32_t b = 0; b < shape().buffers; ++b)
      for (const std::uint32_t page : pages) {
        const std::span bytes(pool.page(b, page), shape().item_bytes);
        sum += static_cast<std::uint64_t>(
            std::ranges::count_if(bytes, [](std::byte one) { return one != std::byte{0xC5}; }));
      }
    return sum;
  }

  void prefill() {
    const auto engine = bench_engine(settings_.local, kPace);
    BenchPool pool(shape(), *engine);
    auto manager = KvManager::create(*engine, KvRole::kPrefill, pool.layout());
    if (!manager) stop_bench(manager.error().to_string());
    std::snprintf(pair_.shared().text, sizeof pair_.shared().text, "%s",
                  engine->session_id().c_str());
    pair_.barrier();
    const volatile std::uint64_t& wanted = pair_.shared().numbers[0];
    std::uint64_t last = 0;
    const std::vector<std::uint32_t> pages = pool.pages_of(0, 1);
    while (wanted != ~0ULL) {
      if (wanted == last) {
        std::this_thread::sleep_for(std::chrono::microseconds(100));
        continue;
      }
      last = wanted;
      KvSender sender(**manager, RoomId(last));
      Status status = sender.init(shape().pages, 0);
      if (status.is_ok()) status = sender.send(pages);
      if (sender.wait(seconds(10)) == KvStatus::kTransferring) stop_bench("a sender hangs");
    }
    pair_.barrier();
    const std::uint64_t* numbers = pair_.shared().numbers;
    row_ = {{"case", "abort"},
            {"transport", settings_.local ? "local" : "tcp"},
            {"requests", settings_.aborts},
            {"aborted", numbers[2]},
            {"midway", numbers[3]},
            {"foreign_bytes", numbers[1]},
            {"p50_ms", static_cast<double>(numbers[4]) * 1e-6},
            {"p99_ms", static_cast<double>(numbers[5]) * 1e-6},
            {"max_ms", static_cast<double>(numbers[6]) * 1e-6}};
  }

  const KvSettings& settings_;
  Pair pair_;
  nlohmann::json row_;
};

}  // namespace

nlohmann::json run_aborts(const KvSettings& settings) {
  return Aborts(settings).run();
}

}  // namespace kvmend::bench
