// Many rooms at once, again and again: the memory that one costs while it lives, and what a
// finished one leaves behind.
#include <malloc.h>

#include <algorithm>
#include <memory>

#include "kv_bench.h"
#include "pair.h"

namespace kvmend::bench {
namespace {

using std::chrono::seconds;

// What remembers a bounded number of finished rooms (16,384) and ended grants (65,536) is full
// after the warm waves of 10,000; from then on nothing may grow.
constexpr int kWarmWaves = 8;

class Rooms {
 public:
  explicit Rooms(const KvSettings& settings) : settings_(settings), pair_(settings.pin) {}

  nlohmann::json run() {
    pair_.fork_child([this] { decode(); });
    prefill();
    row_["ok"] = pair_.join();
    return row_;
  }

 private:
  [[nodiscard]] int last_wave() const { return kWarmWaves + settings_.waves - 1; }
  static KvShape shape() { return {.name = "rooms", .concurrency = 256}; }
  [[nodiscard]] RoomId room(int wave, std::uint32_t i) const {
    return RoomId((static_cast<std::uint64_t>(wave + 1) << 32U) + i);
  }
  /// What the process really uses: freed memory is given back first.
  static std::uint64_t used() {
    malloc_trim(0);
    return private_bytes();
  }

  /// Bytes that the process has allocated and not freed, whatever the allocator keeps beside them.
  static std::uint64_t allocated() {
    const struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
  }

  void decode() {
    const auto engine = bench_engine(settings_.local);
    BenchPool pool(shape(), *engine);
    const KvOptions options{.room_deadline = seconds(120)};
    auto manager = KvManager::create(*engine, KvRole::kDecode, pool.layout(), options);
    if (!manager) stop_bench(manager.error().to_string());
    pair_.barrier();
    const std::string prefill = pair_.shared().text;
    for (int wave = 0; wave <= last_wave(); ++wave) {
      const Memory before = now();
      std::vector<std::unique_ptr<KvReceiver>> receivers(settings_.rooms);
      for (std::uint32_t i = 0; i < settings_.rooms; ++i) {
        receivers[i] = std::make_unique<KvReceiver>(**manager, prefill, room(wave, i));
        receivers[i]->init();
        const std::vector<std::uint32_t> pages{i % shape().concurrency};
        const Status status = receivers[i]->send_metadata(pages, pages[0]);
        if (!status.is_ok()) stop_bench(status.to_string());
      }
      pair_.barrier();  // all are announced
      pair_.barrier();  // all senders are ready
      const std::uint64_t live = used();
      pair_.barrier();
      for (const auto& receiver : receivers)
        if (receiver->wait(seconds(60)) != KvStatus::kSuccess)
          stop_bench("decode: " + receiver->failure().to_string());
      receivers.clear();
      note(2, wave, before, live);
      pair_.barrier();
    }
    pair_.barrier();
  }

  struct Memory {
    std::uint64_t resident;
    std::uint64_t allocated;
  };
  static Memory now() { return {used(), allocated()}; }

  void note(std::size_t at, int wave, const Memory& before, std::uint64_t live) {
    std::uint64_t* numbers = pair_.shared().numbers;
    if (wave == 0) numbers[at] = live - std::min(live, before.resident);
    if (wave == kWarmWaves) {
      numbers[at + 1] = before.resident;
      numbers[at + 2] = before.allocated;
    }
    if (wave == last_wave()) {
      numbers[at + 3] = used();
      numbers[at + 4] = allocated();
    }
  }

  void prefill() {
    const auto engine = bench_engine(settings_.local);
    BenchPool pool(shape(), *engine);
    const KvOptions options{.room_deadline = seconds(120)};
    auto manager = KvManager::create(*engine, KvRole::kPrefill, pool.layout(), options);
    if (!manager) stop_bench(manager.error().to_string());
    std::snprintf(pair_.shared().text, sizeof pair_.shared().text, "%s",
                  engine->session_id().c_str());
    pair_.barrier();
    std::vector<double> took;
    for (int wave = 0; wave <= last_wave(); ++wave) {
      const Memory before = now();
      pair_.barrier();
      const double start = now_seconds();
      std::vector<std::unique_ptr<KvSender>> senders(settings_.rooms);
      for (std::uint32_t i = 0; i < settings_.rooms; ++i)
        senders[i] = std::make_unique<KvSender>(**manager, room(wave, i));
      for (const auto& sender : senders)
        if (sender->wait_for(KvStatus::kWaitingForInput, seconds(60)) != KvStatus::kWaitingForInput)
          stop_bench("prefill: " + sender->failure().to_string());
      const std::uint64_t live = used();
      pair_.barrier();
      pair_.barrier();
      for (std::uint32_t i = 0; i < settings_.rooms; ++i) {
        const std::vector<std::uint32_t> pages{i % shape().concurrency};
        Status status = senders[i]->init(1, pages[0]);
        if (status.is_ok()) status = senders[i]->send(pages);
        if (!status.is_ok()) stop_bench(status.to_string());
      }
      for (const auto& sender : senders)
        if (sender->wait(seconds(60)) != KvStatus::kSuccess)
          stop_bench("prefill: " + sender->failure().to_string());
      took.push_back(now_seconds() - start);
      senders.clear();
      note(8, wave, before, live);
      pair_.barrier();
    }
    pair_.barrier();
    const std::uint64_t* numbers = pair_.shared().numbers;
    const auto finished = static_cast<double>(settings_.rooms) * settings_.waves;
    const auto growth = [&](std::size_t from, std::size_t to) {
      return (static_cast<double>(numbers[to]) - static_cast<double>(numbers[from])) / finished;
    };
    row_ = {
        {"case", "rooms" + std::to_string(settings_.rooms)},
        {"transport", settings_.local ? "local" : "tcp"},
        {"requests", std::uint64_t{settings_.rooms} * static_cast<std::uint64_t>(last_wave() + 1)},
        {"concurrency", settings_.rooms},
        {"requests_per_s", settings_.rooms / median(took)},
        {"bytes_per_room_decode", static_cast<double>(numbers[2]) / settings_.rooms},
        {"bytes_per_room_prefill", static_cast<double>(numbers[8]) / settings_.rooms},
        {"growth_per_room_decode", growth(3, 5)},
        {"growth_per_room_prefill", growth(9, 11)},
        {"heap_growth_per_room_decode", growth(4, 6)},
        {"heap_growth_per_room_prefill", growth(10, 12)}};
  }

  const KvSettings& settings_;
  Pair pair_;
  nlohmann::json row_;
};

}  // namespace

nlohmann::json run_rooms(const KvSettings& settings) {
  return Rooms(settings).run();
}

}  // namespace kvmend::bench
