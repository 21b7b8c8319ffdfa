// kvmend's local transport against the machine: two raw threads of the receiver and kvmend move the
// same scattered pages between the same two processes, alternating. One JSON object per memory kind
// and page size.
#include <sys/mman.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>

#include "kvmend/engine.h"
#include "kvmend/pool.h"
#include "memory/pool_registry.h"
#include "pages.h"
#include "pair.h"
#include "raw_local.h"

namespace kvmend::bench {
namespace {

struct Settings {
  std::vector<std::size_t> page_bytes{4096, 16384, 65536, 262144, 1U << 20};
  std::vector<std::string> memory{"pool", "foreign"};
  std::size_t total_mib = 256;
  int repetitions = 21;
  int latency_rounds = 1000;
  bool checksum = false;
  EngineOptions engine;
};

enum Command : std::uint32_t { kRaw = 0, kEngine = 1, kEnd = 100 };
constexpr std::uint64_t kSeed = 0x6c6f63616cULL;

void fail_hard(const std::string& what) {
  std::fprintf(stderr, "local_bench: %s\n", what.c_str());
  std::exit(1);
}

void expect_ok(const Status& status) {
  if (!status.is_ok()) fail_hard(status.to_string());
}

template <class T>
T take(Result<T> result) {
  if (!result) fail_hard(result.error().to_string());
  return std::move(*result);
}

/// Source memory of either kind.
class Source {
 public:
  Source(bool pool, std::size_t bytes) {
    if (pool) {
      pool_ = take(MemoryPool::create(bytes));
      for (const auto& segment : memory::PoolRegistry::of_process().list())
        if (segment->base() == pool_->data()) fd_ = segment->fd();
    } else {
      buffer_ = std::make_unique<Buffer>(bytes, PageMemory::kHuge);
    }
  }
  std::byte* data() { return pool_ ? pool_->data() : buffer_->data(); }
  [[nodiscard]] int fd() const { return fd_; }

 private:
  std::unique_ptr<MemoryPool> pool_;
  std::unique_ptr<Buffer> buffer_;
  int fd_ = -1;
};

struct Sample {
  double seconds = 0;
  double cpu_seconds = 0;
};

/// One memory kind and page size, both sides.
class Case {
 public:
  Case(const Settings& settings, bool pool, std::size_t page_bytes)
      : settings_(settings),
        pool_(pool),
        page_bytes_(page_bytes),
        pair_(false),
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
  [[nodiscard]] std::size_t bytes() const { return pages_ * page_bytes_; }

  void child() {
    const auto memory = take(MemoryPool::create(bytes()));
    std::memset(memory->data(), 0, bytes());
    auto engine = take(Engine::create(settings_.engine));
    expect_ok(engine->register_memory(memory->data(), bytes()));
    Shared& shared = pair_.shared();
    shared.numbers[0] = reinterpret_cast<std::uint64_t>(memory->data());
    std::snprintf(shared.text, sizeof shared.text, "%s", engine->session_id().c_str());
    pair_.barrier();  // the sender's memory is there
    RawSource source{static_cast<pid_t>(shared.numbers[1]), shared.numbers[2], nullptr};
    if (pool_) {
      source.mapped = map_peer_memfd(source.pid, static_cast<int>(shared.numbers[3]), bytes());
      if (source.mapped == nullptr) shared.failed.store(1);
    }
    while (true) {
      pair_.barrier();
      const std::uint32_t command = shared.command.load();
      if (command == kEnd) break;
      const double cpu = process_cpu_seconds();
      const double start = now_seconds();
      bool ok = true;
      if (command == kRaw)
        ok = raw_copy(source, memory->data(), page_bytes_, src_order_, dst_order_);
      seconds() = now_seconds() - start;
      pair_.barrier();
      shared.cpu_seconds[1] = process_cpu_seconds() - cpu;
      ok = ok && holds({memory->data(), bytes()}, page_bytes_, src_order_, dst_order_, kSeed);
      std::memset(memory->data(), 0, bytes());
      if (!ok) shared.failed.store(1);
      pair_.barrier();
    }
    shared.numbers[4] = thread_count();
    shared.numbers[5] = resident_bytes();
    pair_.barrier();
  }

  // How long the child's copy took, by its own clock.
  double& seconds() { return pair_.shared().cpu_seconds[0]; }

  Sample once(Command command) {
    pair_.shared().command.store(command);
    pair_.barrier();
    const double cpu = process_cpu_seconds();
    const double start = now_seconds();
    if (command == kEngine) move();
    Sample sample;
    sample.seconds = now_seconds() - start;
    const double own = process_cpu_seconds() - cpu;
    pair_.barrier();
    if (command == kRaw) sample.seconds = seconds();
    pair_.barrier();
    sample.cpu_seconds = own + pair_.shared().cpu_seconds[1];
    return sample;
  }

  void move() {
    TransferOptions options;
    options.checksum = settings_.checksum;
    const double start = now_seconds();
    const auto handle = take(engine_->submit_pages(prepared_, Opcode::kWrite, src_order_,
                                                   dst_order_, std::move(options)));
    submit_seconds_.push_back(now_seconds() - start);
    const auto status = handle->wait(std::chrono::seconds(60));
    if (!status || !status->is_ok()) fail_hard(status ? status->to_string() : "timeout");
  }

  void wait_for_local() {
    const double limit = now_seconds() + 10;
    const Slice slice{source_->data(), remote_, 4096};
    while (true) {
      expect_ok(engine_->transfer(session_, Opcode::kWrite, std::span(&slice, 1), {}));
      const auto sessions = engine_->sessions();
      if (!sessions.empty() && sessions.front().transport == "local") return;
      if (now_seconds() > limit) fail_hard("the session didn't become local");
    }
  }

  void latency() {
    const auto count = static_cast<std::size_t>(settings_.latency_rounds);
    const Slice slice{source_->data(), remote_, 4096};
    const auto one = [&] {
      const double start = now_seconds();
      expect_ok(engine_->transfer(session_, Opcode::kWrite, std::span(&slice, 1), {}));
      return now_seconds() - start;
    };
    std::vector<double> busy(count);
    for (double& s : busy) s = one();
    std::vector<double> idle(count / 4);
    for (double& s : idle) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));  // both loops sleep by then
      s = one();
    }
    result_["p50_us"] = median(busy) * 1e6;
    result_["p99_us"] = percentile(busy, 0.99) * 1e6;
    result_["p50_idle_us"] = median(idle) * 1e6;
  }

  // 8 GiB in one piece, 4,096 pieces of 2 MiB; nothing is touched. And submitting 15,000 pages.
  void bookkeeping() {
    constexpr std::size_t kPiece = 2U << 20U;
    constexpr std::size_t kPieces = 4096;
    void* large = mmap(nullptr, kPiece * kPieces, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (large == MAP_FAILED) fail_hard("mmap");
    std::vector<double> one;
    std::vector<double> many;
    std::vector<MemoryRange> ranges;
    for (std::size_t i = 0; i < kPieces; ++i)
      ranges.push_back({static_cast<std::byte*>(large) + i * kPiece, kPiece});
    for (int r = 0; r < 5; ++r) {
      double start = now_seconds();
      expect_ok(
          engine_->register_memory(large, kPiece * kPieces, MemoryKind::kHost, Access::kNone));
      one.push_back(now_seconds() - start);
      expect_ok(engine_->unregister_memory(large));
      start = now_seconds();
      expect_ok(engine_->register_batch(ranges, MemoryKind::kHost, Access::kNone));
      many.push_back(now_seconds() - start);
      for (const MemoryRange& range : ranges) expect_ok(engine_->unregister_memory(range.base));
    }
    munmap(large, kPiece * kPieces);
    result_["register_8gib_ms"] = median(one) * 1e3;
    result_["register_4096x2mib_ms"] = median(many) * 1e3;
  }

  void parent() {
    engine_ = take(Engine::create(settings_.engine));
    source_ = std::make_unique<Source>(pool_, bytes());
    fill({source_->data(), bytes()}, kSeed);
    expect_ok(engine_->register_memory(source_->data(), bytes()));
    Shared& shared = pair_.shared();
    shared.numbers[1] = static_cast<std::uint64_t>(getpid());
    shared.numbers[2] = reinterpret_cast<std::uint64_t>(source_->data());
    shared.numbers[3] = static_cast<std::uint64_t>(source_->fd());
    pair_.barrier();
    session_ = shared.text;
    remote_ = shared.numbers[0];
    static_cast<void>(take(engine_->open_session(session_, std::chrono::seconds(5))));
    prepared_ = take(engine_->prepare(
        session_, {{reinterpret_cast<std::uint64_t>(source_->data())}, page_bytes_, 0, pages_},
        {{remote_}, page_bytes_, 0, pages_}));
    wait_for_local();
    measure();
    latency();
    bookkeeping();
    prepared_.reset();
    engine_.reset();  // before its peer goes
    shared.command.store(kEnd);
    pair_.barrier();
    pair_.barrier();
    result_["threads"] = 2;
    result_["engine_threads"] = shared.numbers[4] - 1;
  }

  void measure() {
    std::array<std::vector<double>, 2> gbps;
    std::array<std::vector<double>, 2> cpu;
    std::vector<double> ratio;
    std::vector<double> raw_against_raw;
    const auto total = static_cast<double>(bytes());
    for (int r = -1; r < settings_.repetitions; ++r) {
      std::array<double, 3> round{};
      int step = 0;
      for (const Command command : {kRaw, kEngine, kRaw}) {  // raw on both sides of kvmend
        const Sample sample = once(command);
        round[static_cast<std::size_t>(step++)] = total / sample.seconds / 1e9;
        if (r < 0) continue;  // warm-up
        gbps[command].push_back(total / sample.seconds / 1e9);
        cpu[command].push_back(sample.cpu_seconds / (total / (1U << 30U)));
      }
      if (r < 0) continue;
      ratio.push_back(round[1] / ((round[0] + round[2]) / 2));
      raw_against_raw.push_back(round[2] / round[0]);
    }
    result_["transport"] = "local";
    result_["memory"] = pool_ ? "pool" : "foreign";
    result_["page_bytes"] = page_bytes_;
    result_["total_bytes"] = bytes();
    result_["pages"] = pages_;
    result_["gbps"] = median(gbps[kEngine]);
    result_["raw_gbps"] = median(gbps[kRaw]);
    result_["ratio_raw"] = median(ratio);
    result_["ratio_p10"] = percentile(ratio, 0.1);
    result_["ratio_p90"] = percentile(ratio, 0.9);
    result_["raw_against_raw"] = median(raw_against_raw);
    result_["raw_against_raw_p10"] = percentile(raw_against_raw, 0.1);
    result_["raw_against_raw_p90"] = percentile(raw_against_raw, 0.9);
    result_["cpu_s_per_gib"] = median(cpu[kEngine]);
    result_["raw_cpu_s_per_gib"] = median(cpu[kRaw]);
    result_["submit_ms"] = median(submit_seconds_) * 1e3;
    result_["submit_us_per_1000_pages"] =
        median(submit_seconds_) * 1e9 / static_cast<double>(pages_);
  }

  const Settings& settings_;
  bool pool_;
  std::size_t page_bytes_;
  Pair pair_;
  std::size_t pages_;
  std::vector<std::uint32_t> src_order_;
  std::vector<std::uint32_t> dst_order_;
  std::unique_ptr<Source> source_;
  std::unique_ptr<Engine> engine_;
  PreparedHandle prepared_;
  std::string session_;
  std::uint64_t remote_ = 0;
  std::vector<double> submit_seconds_;
  nlohmann::json result_;
};

}  // namespace
}  // namespace kvmend::bench

int main(int argc, char** argv) {
  kvmend::bench::Settings settings;
  CLI::App app{"Raw two-thread copies and kvmend's local transport, alternating"};
  app.add_option("--page-bytes", settings.page_bytes, "page sizes")->delimiter(',');
  app.add_option("--memory", settings.memory, "pool, foreign")->delimiter(',');
  app.add_option("--total-mib", settings.total_mib, "bytes per transfer, in MiB");
  app.add_option("--reps", settings.repetitions, "measured rounds");
  app.add_option("--latency-rounds", settings.latency_rounds, "single 4 KiB writes");
  app.add_option("--chunk-bytes", settings.engine.chunk_bytes, "bytes of one frame");
  app.add_option("--window-bytes", settings.engine.window_bytes, "unacknowledged bytes");
  app.add_flag("--checksum", settings.checksum, "XXH3 over every chunk");
  int spin = static_cast<int>(settings.engine.spin.count());
  app.add_option("--spin-us", spin, "busy-wait before blocking");
  CLI11_PARSE(app, argc, argv);
  settings.engine.spin = std::chrono::microseconds(spin);
  for (const std::string& memory : settings.memory) {
    for (const std::size_t bytes : settings.page_bytes) {
      kvmend::bench::Case one(settings, memory == "pool", bytes);
      std::printf("%s\n", one.run().dump().c_str());
      std::fflush(stdout);
    }
  }
  return 0;
}
