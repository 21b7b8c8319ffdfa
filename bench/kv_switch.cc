// Prefill and decode change places on the same engines, a hundred times, with rooms under way: how
// long the change takes, and whether a byte of an old room lands after it.
#include <algorithm>
#include <cstring>
#include <memory>
#include <thread>

#include "kv_bench.h"
#include "pair.h"

namespace kvmend::bench {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::uint32_t kRounds = 100;
constexpr std::uint32_t kRooms = 64;

class Switch {
 public:
  explicit Switch(const KvSettings& settings) : settings_(settings), pair_(settings.pin) {}

  nlohmann::json run() {
    pair_.fork_child([this] { side(false); });
    side(true);
    row_["ok"] = pair_.join() && row_["foreign_bytes"] == 0;
    return row_;
  }

 private:
  static KvShape shape() {
    return {.name = "switch", .buffers = 16, .item_bytes = 16'384, .concurrency = kRooms};
  }
  static std::unique_ptr<KvManager> open(Engine& engine, const BenchPool& pool, bool prefill) {
    auto manager =
        KvManager::create(engine, prefill ? KvRole::kPrefill : KvRole::kDecode, pool.layout());
    if (!manager) stop_bench(manager.error().to_string());
    return std::move(*manager);
  }

  void side(bool parent) {
    const auto engine = bench_engine(settings_.local);
    BenchPool pool(shape(), *engine);
    char* own = pair_.shared().text + (parent ? 0 : 128);
    const char* other = pair_.shared().text + (parent ? 128 : 0);
    std::snprintf(own, 128, "%s", engine->session_id().c_str());
    bool prefill = parent;
    std::unique_ptr<KvManager> manager = open(*engine, pool, prefill);
    pair_.barrier();
    std::vector<double> took;
    std::uint64_t foreign = 0;
    std::uint64_t ended = 0;
    std::vector<std::byte> before(pool.size());
    for (std::uint32_t round = 0; round < kRounds; ++round) {
      std::vector<std::unique_ptr<KvReceiver>> receivers;
      std::vector<std::unique_ptr<KvSender>> senders;
      load(*manager, prefill, other, round, receivers, senders);
      // Some have ended by now, some haven't.
      if (!receivers.empty()) receivers[round % kRooms]->wait(seconds(10));
      if (!senders.empty()) senders[round % kRooms]->wait(seconds(10));
      const double start = now_seconds();
      manager.reset();
      const double torn_down = now_seconds();
      if (!prefill) std::memcpy(before.data(), pool.page(0, 0), before.size());
      const double copied = now_seconds();  // not a part of the change
      manager = open(*engine, pool, !prefill);
      took.push_back(now_seconds() - copied + torn_down - start);
      for (const auto& one : receivers) ended += is_terminal(one->poll()) ? 1 : 0;
      for (const auto& one : senders) ended += is_terminal(one->poll()) ? 1 : 0;
      pair_.barrier();
      if (!prefill) {  // what is late has had its time: the other side is through, too
        std::this_thread::sleep_for(milliseconds(5));
        for (std::size_t i = 0; i < before.size(); ++i)
          foreign += before[i] != pool.page(0, 0)[i] ? 1 : 0;
      }
      prefill = !prefill;
      pair_.barrier();
    }
    report(parent, took, foreign, ended);
  }

  void load(KvManager& manager, bool prefill, const char* other, std::uint32_t round,
            std::vector<std::unique_ptr<KvReceiver>>& receivers,
            std::vector<std::unique_ptr<KvSender>>& senders) {
    for (std::uint32_t i = 0; i < kRooms; ++i) {
      const RoomId room((std::uint64_t{round} + 1) << 32U | i);
      const std::vector<std::uint32_t> pages{i};
      Status status;
      if (prefill) {
        senders.push_back(std::make_unique<KvSender>(manager, room));
        status = senders.back()->init(1, i);
        if (status.is_ok()) status = senders.back()->send(pages);
      } else {
        receivers.push_back(std::make_unique<KvReceiver>(manager, other, room));
        receivers.back()->init();
        status = receivers.back()->send_metadata(pages, i);
      }
      if (!status.is_ok()) std::fprintf(stderr, "kv_bench: %s\n", status.to_string().c_str());
    }
  }

  void report(bool parent, const std::vector<double>& took, std::uint64_t foreign,
              std::uint64_t ended) {
    std::uint64_t* numbers = pair_.shared().numbers;
    if (!parent) {
      numbers[0] = foreign;
      numbers[1] = ended;
    }
    pair_.barrier();
    if (!parent) return;
    row_ = {{"case", "switch"},
            {"transport", settings_.local ? "local" : "tcp"},
            {"requests", kRounds},
            {"p50_ms", median(took) * 1e3},
            {"p99_ms", percentile(took, 0.99) * 1e3},
            {"max_ms", percentile(took, 1.0) * 1e3},
            {"rooms_ended", numbers[1] + ended},
            {"foreign_bytes", numbers[0] + foreign}};
  }

  const KvSettings& settings_;
  Pair pair_;
  nlohmann::json row_;
};

}  // namespace

nlohmann::json run_switch(const KvSettings& settings) {
  return Switch(settings).run();
}

}  // namespace kvmend::bench
