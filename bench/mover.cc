// Commands, one a line on standard input; each is answered with one JSON object on standard output:
//
//   page BYTES            the size of the pages from now on
//   kvmend | raw | plain | window   moves all pages once (raw_tcp.h); "check" as a second word has
//                         the bytes looked at
//   latency N US          N single 4 KiB writes by kvmend, US of rest before each, and raw ones
//   idle S                how busy the engine is that has nothing to do
//   bookkeeping           registering, and submitting 15,000 pages of 64 KiB; from then on this
//                         process is free to use every core
//   facts                 memory and threads of the first target's process; the last command
#include "mover.h"

#include <sys/mman.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstring>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "delay_proxy.h"
#include "raw_tcp.h"

namespace kvmend::bench {
namespace {

using nlohmann::json;

class Mover {
 public:
  explicit Mover(const MoverSettings& settings)
      : settings_(settings), total_(settings.total_mib << 20U) {
    for (std::size_t p = 0; p < settings.peers; ++p)
      links_.push_back(
          {std::make_unique<Pair>(settings.pin || (!settings.local && settings.peers == 1))});
    for (Link& link : links_) link.pair->fork_child([&] { run_target(settings_, *link.pair); });
    memory_ = std::make_unique<Memory>(settings.pool, total_);
    fill(memory_->bytes(), kFillSeed);
    for (Link& link : links_) meet(link);
    if (settings.delay.count() > 0) put_far_away();
    engine_ = take(Engine::create(settings.engine));
    expect_ok(engine_->register_memory(memory_->data(), total_));
    for (Link& link : links_) connect(link);
  }
  ~Mover() {
    if (proxy_ > 0) kill(proxy_, SIGKILL);
  }
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;

  json obey(const std::string& line) {
    std::istringstream words(line);
    std::string command;
    std::string extra;
    words >> command;
    double number = 0;
    if (command == "page") {
      words >> number;
      set_page(static_cast<std::size_t>(number));
      return {{"page_bytes", page_bytes_}};
    }
    if (command == "latency") {
      double rest = 0;
      words >> number >> rest;
      return latency(static_cast<std::size_t>(number), rest);
    }
    if (command == "idle") {
      words >> number;
      const double cpu = process_cpu_seconds();
      std::this_thread::sleep_for(std::chrono::duration<double>(number));
      return {{"idle_cores", (process_cpu_seconds() - cpu) / number}};
    }
    if (command == "bookkeeping") return bookkeeping();
    if (command == "facts") return facts();
    words >> extra;
    if (command == "kvmend") return move(Ask::kKvmend, extra == "check");
    if (command == "raw") return move(Ask::kRaw, extra == "check");
    if (command == "plain" && !settings_.local) return move(Ask::kPlain, extra == "check");
    for (const auto& [name, sender] :
         {std::pair("splice", RawSender::kSplice), std::pair("uring", RawSender::kUring)})
      if (command == name && !settings_.local) return move(Ask::kRaw, extra == "check", sender);
    if (command == "window" && !settings_.local) return move(Ask::kWindow, extra == "check");
    fail_hard("no command '" + line + "'");
  }

 private:
  struct Link {
    std::unique_ptr<Pair> pair;
    int fd = -1;
    std::uint16_t port = 0;
    std::string session;
    std::uint64_t remote = 0;
    std::unique_ptr<Orders> orders;
    PreparedHandle prepared;
  };

  void meet(Link& link) {
    Shared& shared = link.pair->shared();
    shared.numbers[kSourcePid] = static_cast<std::uint64_t>(getpid());
    shared.numbers[kSourceAddress] = reinterpret_cast<std::uint64_t>(memory_->data());
    shared.numbers[kSourceFd] = static_cast<std::uint64_t>(memory_->fd());
    link.pair->barrier();
    link.port = static_cast<std::uint16_t>(shared.numbers[kPort]);
    link.session = shared.text;
    link.remote = shared.numbers[kAddress];
  }

  // A raw port and an engine's port of each target, both behind a proxy of their own.
  void put_far_away() {
    std::vector<std::uint16_t> targets;
    for (const Link& link : links_) {
      targets.push_back(link.port);
      targets.push_back(
          static_cast<std::uint16_t>(std::stoi(link.session.substr(link.session.rfind(':') + 1))));
    }
    std::vector<std::uint16_t> ports;
    proxy_ = fork_delay_proxy(targets, settings_.delay, ports);
    for (std::size_t p = 0; p < links_.size(); ++p) {
      links_[p].port = ports[2 * p];
      links_[p].session = "127.0.0.1:" + std::to_string(ports[2 * p + 1]);
    }
  }

  void connect(Link& link) {
    link.fd = RawTcp::connect_to(link.port);
    if (link.fd < 0) fail_hard("connect");
    static_cast<void>(take(engine_->open_session(link.session, std::chrono::seconds(5))));
    const double limit = now_seconds() + 10;
    const std::string want = settings_.local ? "local" : "tcp";
    const Slice slice{memory_->data(), link.remote, 4096};
    while (true) {
      expect_ok(engine_->transfer(link.session, Opcode::kWrite, std::span(&slice, 1), {}));
      for (const SessionInfo& info : engine_->sessions())
        if (info.session_id == link.session && info.transport == want) return;
      if (now_seconds() > limit) fail_hard("the session isn't served by " + want);
    }
  }

  void set_page(std::size_t page_bytes) {
    page_bytes_ = page_bytes;
    const std::size_t pages = total_ / page_bytes;
    const std::size_t share = pages / links_.size();
    for (std::size_t p = 0; p < links_.size(); ++p) {
      Link& link = links_[p];
      link.pair->shared().numbers[kPageBytes] = page_bytes;
      link.pair->shared().numbers[kFirstPage] = p * share;
      link.orders = std::make_unique<Orders>(pages, p * share, share);
      link.prepared = take(engine_->prepare(
          link.session, {{reinterpret_cast<std::uint64_t>(memory_->data())}, page_bytes, 0, pages},
          {{link.remote}, page_bytes, 0, share}));
    }
  }

  void tell(Ask ask, bool check) {
    for (Link& link : links_) {
      link.pair->shared().command.store(static_cast<std::uint32_t>(ask));
      link.pair->shared().numbers[kCheck] = check ? 1 : 0;
      link.pair->barrier();
      link.pair->barrier();
    }
  }

  // Seconds that the targets took by their own clocks, and their CPU seconds.
  std::pair<double, double> gather() {
    double seconds = 0;
    double cpu = 0;
    for (Link& link : links_) link.pair->barrier();
    for (Link& link : links_) link.pair->barrier();
    for (Link& link : links_) {
      seconds = std::max(seconds, link.pair->shared().cpu_seconds[0]);
      cpu += link.pair->shared().cpu_seconds[1];
      if (link.pair->shared().failed.load() != 0) fail_hard("a target found wrong bytes");
    }
    return {seconds, cpu};
  }

  json move(Ask ask, bool check, RawSender sender = RawSender::kSendmsg) {
    submit_seconds_.clear();
    tell(ask, check && !settings_.read);
    const double cpu = process_cpu_seconds();
    const double start = now_seconds();
    if (ask == Ask::kKvmend) {
      move_by_kvmend();
    } else if (!settings_.local) {
      send_raw(ask == Ask::kRaw     ? RawMode::kHeaders
               : ask == Ask::kPlain ? RawMode::kPlain
                                    : RawMode::kWindow,
               sender);
    }
    double seconds = now_seconds() - start;
    const double own = process_cpu_seconds() - cpu;
    const auto [their_seconds, their_cpu] = gather();
    if (settings_.local && ask == Ask::kRaw) seconds = their_seconds;
    if (settings_.read && check && ask == Ask::kKvmend &&
        !holds(memory_->bytes(), page_bytes_, links_[0].orders->dst, links_[0].orders->src,
               kFillSeed))
      fail_hard("wrong bytes were read");
    json out{{"seconds", seconds},
             {"gbps", static_cast<double>(total_) / seconds / 1e9},
             {"cpu_s_per_gib", (own + their_cpu) / (static_cast<double>(total_) / (1U << 30U))}};
    if (!submit_seconds_.empty()) out["submit_ms"] = median(submit_seconds_) * 1e3;
    return out;
  }

  void send_raw(RawMode mode, RawSender sender) {
    const auto send = [&](Link& link) {
      if (!RawTcp::send(link.fd, mode, memory_->bytes(), page_bytes_, link.orders->src,
                        link.orders->dst, settings_.engine.window_bytes, sender))
        fail_hard("the raw stream broke");
    };
    std::vector<std::jthread> senders;
    for (std::size_t p = 1; p < links_.size(); ++p)
      senders.emplace_back([&, p] { send(links_[p]); });
    send(links_[0]);
  }

  // Every thread takes its share of every target's pages.
  void move_by_kvmend() {
    std::vector<std::jthread> movers;
    for (std::size_t t = 1; t < settings_.threads; ++t)
      movers.emplace_back([&, t] { move_part(t); });
    move_part(0);
  }

  void move_part(std::size_t thread) {
    std::vector<TransferHandle> handles;
    double seconds = 0;
    for (Link& link : links_) {
      const std::size_t pages = link.orders->src.size();
      const std::size_t from = pages * thread / settings_.threads;
      const std::size_t count = pages * (thread + 1) / settings_.threads - from;
      TransferOptions options;
      options.checksum = settings_.checksum;
      const double start = now_seconds();
      handles.push_back(take(engine_->submit_pages(
          link.prepared, settings_.read ? Opcode::kRead : Opcode::kWrite,
          std::span(link.orders->src).subspan(from, count),
          std::span(link.orders->dst).subspan(from, count), std::move(options))));
      seconds += now_seconds() - start;
    }
    if (thread == 0) submit_seconds_.push_back(seconds);
    for (const TransferHandle& handle : handles) {
      const auto status = handle->wait(std::chrono::seconds(60));
      if (!status || !status->is_ok()) fail_hard(status ? status->to_string() : "timeout");
    }
  }

  json latency(std::size_t count, double rest_us) {
    const auto rest = std::chrono::duration<double, std::micro>(rest_us);
    std::vector<double> own(count);
    Link& link = links_[0];
    const Slice slice{memory_->data(), link.remote, 4096};
    tell(Ask::kKvmend, false);
    for (double& seconds : own) {
      if (rest_us > 0) std::this_thread::sleep_for(rest);
      const double start = now_seconds();
      expect_ok(engine_->transfer(link.session, Opcode::kWrite, std::span(&slice, 1), {}));
      seconds = now_seconds() - start;
    }
    gather();
    json out{{"p50_us", median(own) * 1e6}, {"p99_us", percentile(own, 0.99) * 1e6}};
    if (links_.size() > 1) return out;
    std::vector<double> raw(count);
    link.pair->shared().numbers[kCount] = count;
    tell(Ask::kPong, false);
    if (!RawTcp::ping(link.fd, 4096, count, raw.data(), rest_us)) fail_hard("ping");
    gather();
    out["raw_p50_us"] = median(raw) * 1e6;
    out["raw_p99_us"] = percentile(raw, 0.99) * 1e6;
    return out;
  }

  // 8 GiB in one piece, 4,096 pieces of 2 MiB; nothing is touched.
  json bookkeeping() {
    constexpr std::size_t kPiece = 2U << 20U;
    constexpr std::size_t kPieces = 4096;
    Pair::unpin();  // else its own loop would take the core from the caller in mid-submit
    void* large = mmap(nullptr, kPiece * kPieces, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (large == MAP_FAILED) fail_hard("mmap");
    std::vector<double> one;
    std::vector<double> many;
    std::vector<double> submit;
    std::vector<MemoryRange> ranges;
    for (std::size_t i = 0; i < kPieces; ++i)
      ranges.push_back({static_cast<std::byte*>(large) + i * kPiece, kPiece});
    for (int r = 0; r < 21; ++r) {
      double start = now_seconds();
      expect_ok(
          engine_->register_memory(large, kPiece * kPieces, MemoryKind::kHost, Access::kNone));
      one.push_back(now_seconds() - start);
      expect_ok(engine_->unregister_memory(large));
      start = now_seconds();
      expect_ok(engine_->register_batch(ranges, MemoryKind::kHost, Access::kNone));
      many.push_back(now_seconds() - start);
      for (const MemoryRange& range : ranges) expect_ok(engine_->unregister_memory(range.base));
      submit.push_back(submit_15000());
    }
    munmap(large, kPiece * kPieces);
    return {{"register_8gib_ms", median(one) * 1e3},
            {"register_4096x2mib_ms", median(many) * 1e3},
            {"submit_15000_pages_ms", median(submit) * 1e3}};
  }

  // 15,000 slices of 64 KiB whose places are scattered over what there is. Cancelled at once.
  double submit_15000() {
    constexpr std::size_t kPages = 15'000;
    constexpr std::size_t kPage = 65'536;
    const std::size_t places = (total_ / links_.size()) / kPage;
    std::vector<Slice> slices;
    for (std::size_t i = 0; i < kPages; ++i)
      slices.push_back({memory_->data() + (i * 7 % places) * kPage,
                        links_[0].remote + (i * 11 % places) * kPage, kPage});
    const double start = now_seconds();
    const auto handle = take(engine_->submit(links_[0].session, Opcode::kWrite, slices, {}));
    const double seconds = now_seconds() - start;
    handle->cancel();
    static_cast<void>(handle->wait(std::chrono::seconds(60)));
    return seconds;
  }

  json facts() {
    for (Link& link : links_) link.prepared.reset();
    engine_.reset();  // before its peers go
    for (Link& link : links_) {
      link.pair->shared().command.store(static_cast<std::uint32_t>(Ask::kEnd));
      link.pair->barrier();
      link.pair->barrier();
    }
    const Shared& shared = links_[0].pair->shared();
    json out{{"target_private_mib", static_cast<double>(shared.numbers[kResident]) / (1U << 20U)},
             {"target_engine_threads", shared.numbers[kThreads]}};
    for (Link& link : links_)
      if (!link.pair->join()) fail_hard("a target failed");
    return out;
  }

  const MoverSettings& settings_;
  std::size_t total_;
  std::vector<Link> links_;
  std::unique_ptr<Memory> memory_;
  std::unique_ptr<Engine> engine_;
  std::size_t page_bytes_ = 0;
  std::vector<double> submit_seconds_;
  pid_t proxy_ = -1;
};

}  // namespace
}  // namespace kvmend::bench

int main(int argc, char** argv) {
  kvmend::bench::MoverSettings settings;
  CLI::App app{"Moves pages by kvmend and by the machine's raw means, on command"};
  std::string transport = "tcp";
  std::string memory = "pool";
  app.add_option("--transport", transport)->check(CLI::IsMember({"tcp", "local"}));
  app.add_option("--memory", memory)->check(CLI::IsMember({"pool", "foreign"}));
  app.add_option("--peers", settings.peers, "targets");
  app.add_option("--threads", settings.threads, "submitting threads");
  app.add_option("--total-mib", settings.total_mib, "bytes per transfer, in MiB");
  app.add_flag("--pin", settings.pin, "each process to a core of its own (latency)");
  app.add_flag("--checksum", settings.checksum, "XXH3 over every chunk");
  app.add_flag("--read", settings.read, "kvmend reads instead of writing; one peer");
  std::int64_t delay = 0;
  app.add_option("--delay-us", delay, "one way, by a proxy (tcp)");
  app.add_option("--lanes", settings.engine.tcp.data_lanes, "data lanes");
  app.add_option("--congestion", settings.engine.tcp.congestion, "TCP_CONGESTION");
  app.add_option("--chunk-bytes", settings.engine.chunk_bytes, "payload of one frame");
  app.add_option("--window-bytes", settings.engine.window_bytes, "unacknowledged bytes");
  app.add_option("--sndbuf", settings.engine.tcp.send_buffer_bytes, "SO_SNDBUF");
  app.add_option("--rcvbuf", settings.engine.tcp.receive_buffer_bytes, "SO_RCVBUF");
  int spin = static_cast<int>(settings.engine.spin.count());
  app.add_option("--spin-us", spin, "busy-wait before blocking");
  CLI11_PARSE(app, argc, argv);
  settings.local = transport == "local";
  settings.pool = memory == "pool";
  settings.engine.local = settings.local ? kvmend::LocalMode::kAuto : kvmend::LocalMode::kOff;
  settings.delay = std::chrono::microseconds(delay);
  settings.engine.spin = std::chrono::microseconds(spin);
  settings.engine.default_deadline = std::chrono::seconds(120);
  kvmend::bench::Mover mover(settings);
  std::string line;
  while (std::getline(std::cin, line)) {
    std::printf("%s\n", mover.obey(line).dump().c_str());
    std::fflush(stdout);
    if (line == "facts") break;
  }
  return 0;
}
