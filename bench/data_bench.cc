// The data plane against the machine: a raw tcp stream and kvmend move the same scattered pages
// between the same two processes, alternating. Prints one JSON object per page size.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <thread>

#include "kvmend/engine.h"
#include "pages.h"
#include "pair.h"
#include "raw_tcp.h"

namespace kvmend::bench {
namespace {

struct Settings {
  std::vector<std::size_t> page_bytes{4096, 16384, 65536, 1U << 20};
  std::size_t total_mib = 256;
  int repetitions = 5;
  int latency_rounds = 2000;
  double idle_seconds = 3;
  bool pin = true;
  bool checksum = false;
  int threads = 1;
  EngineOptions engine;
};

enum class Kind : std::uint32_t { kRawPlain = 0, kRawHeaders = 1, kEngine = 2 };
constexpr std::array<const char*, 3> kKindNames{"raw_plain", "raw_headers", "kvmend"};
constexpr std::uint64_t kSeed = 0x6b766d656e64ULL;

struct Sample {
  double seconds = 0;
  double cpu_seconds = 0;
};

void fail_hard(const std::string& what) {
  std::fprintf(stderr, "data_bench: %s\n", what.c_str());
  std::exit(1);
}

/// One page size, both sides.
class Case {
 public:
  Case(const Settings& settings, std::size_t page_bytes)
      : settings_(settings),
        page_bytes_(page_bytes),
        pair_(settings.pin),
        pages_((settings.total_mib << 20U) / page_bytes),
        src_order_(random_order(pages_, 1)),
        dst_order_(random_order(pages_, 2)) {}

  nlohmann::json run() {
    pair_.fork_child([this] { child(); });
    parent();
    if (!pair_.join()) fail_hard("the target found wrong bytes or failed");
    return result_;
  }

 private:
  void child() {
    Buffer pool(pages_ * page_bytes_, PageMemory::kHuge);
    std::uint16_t port = 0;
    const int listener = RawTcp::listen_on_loopback(port);
    pair_.shared().numbers[0] = port;
    auto engine = Engine::create(settings_.engine);
    if (!engine) fail_hard(engine.error().to_string());
    if (const Status s = (*engine)->register_memory(pool.data(), pool.size()); !s.is_ok())
      fail_hard(s.to_string());
    pair_.shared().numbers[1] = reinterpret_cast<std::uint64_t>(pool.data());
    std::snprintf(pair_.shared().text, sizeof pair_.shared().text, "%s",
                  (*engine)->session_id().c_str());
    pair_.barrier();
    const int fd = RawTcp::accept_one(listener);
    while (true) {
      pair_.barrier();
      const std::uint32_t command = pair_.shared().command.load();
      if (command == 100) break;
      const double cpu = process_cpu_seconds();
      bool ok = true;
      if (command == 50) {
        ok = RawTcp::pong(fd, 4096, static_cast<std::size_t>(settings_.latency_rounds));
      } else if (command == static_cast<std::uint32_t>(Kind::kEngine) || command == 51) {
        // The engine's own thread does it.
      } else {
        ok = RawTcp::receive(fd, static_cast<RawMode>(command), {pool.data(), pool.size()},
                             page_bytes_, dst_order_);
      }
      pair_.barrier();
      pair_.shared().cpu_seconds[1] = process_cpu_seconds() - cpu;
      if (ok && command <= 2) {
        ok = holds({pool.data(), pool.size()}, page_bytes_, src_order_, dst_order_, kSeed);
        std::memset(pool.data(), 0, pool.size());
      }
      if (!ok) pair_.shared().failed.store(1);
      pair_.barrier();
    }
    pair_.shared().numbers[2] = resident_bytes() - pool.size();
    pair_.shared().numbers[3] = thread_count();
    pair_.barrier();
  }

  Sample once(Kind kind) {
    pair_.shared().command.store(static_cast<std::uint32_t>(kind));
    pair_.barrier();
    const double cpu = process_cpu_seconds();
    const double start = now_seconds();
    if (kind == Kind::kEngine) {
      move_with_engine();
    } else if (!RawTcp::send(fd_, static_cast<RawMode>(kind), {pool_->data(), pool_->size()},
                             page_bytes_, src_order_, dst_order_)) {
      fail_hard("the raw stream broke");
    }
    Sample sample;
    sample.seconds = now_seconds() - start;
    const double own = process_cpu_seconds() - cpu;
    pair_.barrier();
    pair_.barrier();
    sample.cpu_seconds = own + pair_.shared().cpu_seconds[1];
    return sample;
  }

  void move_with_engine() {
    const auto threads = static_cast<std::size_t>(settings_.threads);
    if (threads == 1) return move_part(0, slices_.size());
    std::vector<std::jthread> movers;
    for (std::size_t t = 0; t < threads; ++t) {
      const std::size_t from = slices_.size() * t / threads;
      const std::size_t to = slices_.size() * (t + 1) / threads;
      movers.emplace_back([this, from, to] { move_part(from, to); });
    }
  }

  void move_part(std::size_t from, std::size_t to) {
    TransferOptions options;
    options.checksum = settings_.checksum;
    const double start = now_seconds();
    auto handle = engine_->submit(session_, Opcode::kWrite,
                                  std::span(slices_).subspan(from, to - from), std::move(options));
    submit_seconds_.push_back(now_seconds() - start);
    if (!handle) fail_hard(handle.error().to_string());
    const auto status = (*handle)->wait(std::chrono::seconds(60));
    if (!status || !status->is_ok()) fail_hard(status ? status->to_string() : "timeout");
  }

  void latency() {
    const auto count = static_cast<std::size_t>(settings_.latency_rounds);
    std::vector<double> raw(count);
    pair_.shared().command.store(50);
    pair_.barrier();
    if (!RawTcp::ping(fd_, 4096, count, raw.data())) fail_hard("ping");
    pair_.barrier();
    pair_.barrier();
    std::vector<double> own(count);
    pair_.shared().command.store(51);
    pair_.barrier();
    const Slice slice{pool_->data(), remote_, 4096};
    for (double& seconds : own) {
      const double start = now_seconds();
      const Status status = engine_->transfer(session_, Opcode::kWrite, std::span(&slice, 1), {});
      seconds = now_seconds() - start;
      if (!status.is_ok()) fail_hard(status.to_string());
    }
    pair_.barrier();
    pair_.barrier();
    result_["p50_us"] = median(own) * 1e6;
    result_["p99_us"] = percentile(own, 0.99) * 1e6;
    result_["raw_p50_us"] = median(raw) * 1e6;
    result_["raw_p99_us"] = percentile(raw, 0.99) * 1e6;
  }

  void parent() {
    auto engine = Engine::create(settings_.engine);
    if (!engine) fail_hard(engine.error().to_string());
    engine_ = std::move(*engine);
    pool_ = std::make_unique<Buffer>(pages_ * page_bytes_, PageMemory::kHuge);
    fill({pool_->data(), pool_->size()}, kSeed);
    if (const Status s = engine_->register_memory(pool_->data(), pool_->size()); !s.is_ok())
      fail_hard(s.to_string());
    pair_.barrier();
    fd_ = RawTcp::connect_to(static_cast<std::uint16_t>(pair_.shared().numbers[0]));
    if (fd_ < 0) fail_hard("connect");
    session_ = pair_.shared().text;
    remote_ = pair_.shared().numbers[1];
    for (std::size_t i = 0; i < pages_; ++i)
      slices_.push_back({pool_->data() + src_order_[i] * page_bytes_,
                         remote_ + dst_order_[i] * page_bytes_, page_bytes_});
    if (auto opened = engine_->open_session(session_, std::chrono::seconds(5)); !opened)
      fail_hard(opened.error().to_string());

    std::array<std::vector<double>, 3> gbps;
    std::array<std::vector<double>, 3> cpu;
    std::vector<double> ratio_plain;
    std::vector<double> ratio_headers;
    const double bytes = static_cast<double>(pages_ * page_bytes_);
    for (int r = -1; r < settings_.repetitions; ++r) {
      std::array<double, 3> round{};
      for (const Kind kind : {Kind::kRawPlain, Kind::kRawHeaders, Kind::kEngine}) {
        const Sample sample = once(kind);
        if (r < 0) continue;  // warm-up
        const auto k = static_cast<std::size_t>(kind);
        round[k] = bytes / sample.seconds / 1e9;
        gbps[k].push_back(round[k]);
        cpu[k].push_back(sample.cpu_seconds / (bytes / (1U << 30U)));
      }
      if (r < 0) continue;
      ratio_plain.push_back(round[2] / round[0]);
      ratio_headers.push_back(round[2] / round[1]);
    }
    latency();
    const double idle_cpu = process_cpu_seconds();
    std::this_thread::sleep_for(std::chrono::duration<double>(settings_.idle_seconds));
    const double idle = (process_cpu_seconds() - idle_cpu) / settings_.idle_seconds;
    pair_.shared().command.store(100);
    pair_.barrier();
    pair_.barrier();

    result_["transport"] = "tcp";
    result_["memory"] = "pool";
    result_["page_bytes"] = page_bytes_;
    result_["threads"] = settings_.threads;
    result_["total_bytes"] = pages_ * page_bytes_;
    result_["pages"] = pages_;
    result_["gbps"] = median(gbps[2]);
    result_["raw_gbps"] = median(gbps[1]);
    result_["raw_plain_gbps"] = median(gbps[0]);
    result_["ratio_raw"] = median(ratio_headers);
    result_["ratio_raw_plain"] = median(ratio_plain);
    result_["cpu_s_per_gib"] = median(cpu[2]);
    result_["raw_cpu_s_per_gib"] = median(cpu[1]);
    result_["submit_ms"] = median(submit_seconds_) * 1e3;
    result_["idle_cores"] = idle;
    result_["resident_beyond_pool_mib"] =
        static_cast<double>(pair_.shared().numbers[2]) / (1U << 20U);
    result_["engine_threads"] = pair_.shared().numbers[3] - 1;
  }

  const Settings& settings_;
  std::size_t page_bytes_;
  Pair pair_;
  std::size_t pages_;
  std::vector<std::uint32_t> src_order_;
  std::vector<std::uint32_t> dst_order_;
  std::unique_ptr<Buffer> pool_;
  std::unique_ptr<Engine> engine_;
  int fd_ = -1;
  std::string session_;
  std::uint64_t remote_ = 0;
  std::vector<Slice> slices_;
  std::vector<double> submit_seconds_;
  nlohmann::json result_;
};

}  // namespace
}  // namespace kvmend::bench

int main(int argc, char** argv) {
  kvmend::bench::Settings settings;
  settings.engine.local = kvmend::LocalMode::kOff;
  CLI::App app{"Raw tcp stream and kvmend's tcp transport, alternating between two processes"};
  app.add_option("--page-bytes", settings.page_bytes, "page sizes")->delimiter(',');
  app.add_option("--total-mib", settings.total_mib, "bytes per transfer, in MiB");
  app.add_option("--reps", settings.repetitions, "measured rounds");
  app.add_option("--latency-rounds", settings.latency_rounds, "single 4 KiB writes");
  app.add_option("--threads", settings.threads, "submitting threads");
  app.add_option("--lanes", settings.engine.tcp.data_lanes, "data lanes");
  app.add_option("--chunk-bytes", settings.engine.chunk_bytes, "payload of one frame");
  app.add_option("--window-bytes", settings.engine.window_bytes, "unacknowledged bytes");
  app.add_option("--sndbuf", settings.engine.tcp.send_buffer_bytes, "SO_SNDBUF");
  app.add_option("--rcvbuf", settings.engine.tcp.receive_buffer_bytes, "SO_RCVBUF");
  app.add_option("--idle-seconds", settings.idle_seconds, "how long the idle engine is watched");
  app.add_flag("--checksum", settings.checksum, "XXH3 over every chunk");
  int spin = static_cast<int>(settings.engine.spin.count());
  app.add_option("--spin-us", spin, "busy-wait before blocking");
  bool no_pin = false;
  app.add_flag("--no-pin", no_pin, "leave the processes to the scheduler");
  CLI11_PARSE(app, argc, argv);
  settings.pin = !no_pin;
  settings.engine.spin = std::chrono::microseconds(spin);
  for (const std::size_t bytes : settings.page_bytes) {
    kvmend::bench::Case one(settings, bytes);
    std::printf("%s\n", one.run().dump().c_str());
    std::fflush(stdout);
  }
  return 0;
}
