#include "mover.h"
#include "raw_local.h"
#include "raw_tcp.h"

namespace kvmend::bench {
namespace {

class Target {
 public:
  Target(const MoverSettings& settings, Pair& pair)
      : settings_(settings),
        pair_(pair),
        total_((settings.total_mib << 20U)),
        memory_(settings.local || settings.pool, total_ / settings.peers) {}

  void run() {
    std::uint16_t port = 0;
    const int listener = RawTcp::listen_on_loopback(port);
    auto engine = take(Engine::create(settings_.engine));
    expect_ok(engine->register_memory(memory_.data(), memory_.bytes().size()));
    Shared& shared = pair_.shared();
    shared.numbers[kPort] = port;
    shared.numbers[kAddress] = reinterpret_cast<std::uint64_t>(memory_.data());
    std::snprintf(shared.text, sizeof shared.text, "%s", engine->session_id().c_str());
    pair_.barrier();  // both sides' memory is there
    fd_ = RawTcp::accept_one(listener);
    if (settings_.read) fill(memory_.bytes(), kFillSeed);
    source_ = {static_cast<pid_t>(shared.numbers[kSourcePid]), shared.numbers[kSourceAddress],
               nullptr};
    if (settings_.local && settings_.pool) {
      source_.mapped =
          map_peer_memfd(source_.pid, static_cast<int>(shared.numbers[kSourceFd]), total_);
      if (source_.mapped == nullptr) fail_hard("the source's pool can't be mapped");
    }
    while (obey()) {
    }
    shared.numbers[kResident] = private_bytes();
    shared.numbers[kThreads] = thread_count() - 1;  // this one isn't the engine's
    pair_.barrier();
  }

 private:
  bool obey() {
    pair_.barrier();
    Shared& shared = pair_.shared();
    const auto ask = static_cast<Ask>(shared.command.load());
    if (ask == Ask::kEnd) return false;
    const std::size_t page_bytes = shared.numbers[kPageBytes];
    if (page_bytes != page_bytes_) {
      page_bytes_ = page_bytes;
      orders_ = std::make_unique<Orders>(total_ / page_bytes, shared.numbers[kFirstPage],
                                         memory_.bytes().size() / page_bytes);
    }
    pair_.barrier();  // ready: what comes is measured
    const double cpu = process_cpu_seconds();
    const double start = now_seconds();
    const bool done = act(ask);
    shared.cpu_seconds[0] = now_seconds() - start;
    pair_.barrier();
    shared.cpu_seconds[1] = process_cpu_seconds() - cpu;
    const bool check = shared.numbers[kCheck] == 1;
    if (!done ||
        (check && !holds(memory_.bytes(), page_bytes, orders_->src, orders_->dst, kFillSeed)))
      shared.failed.store(1);
    if (check) std::memset(memory_.data(), 0, memory_.bytes().size());
    pair_.barrier();
    return true;
  }

  bool act(Ask ask) {
    const auto count = static_cast<std::size_t>(pair_.shared().numbers[kCount]);
    switch (ask) {
      case Ask::kPong:
        return RawTcp::pong(fd_, 4096, count);
      case Ask::kRaw:
        if (settings_.local)
          return raw_copy(source_, memory_.data(), page_bytes_, orders_->src, orders_->dst);
        return RawTcp::receive(fd_, RawMode::kHeaders, memory_.bytes(), page_bytes_, orders_->dst);
      case Ask::kPlain:
        return RawTcp::receive(fd_, RawMode::kPlain, memory_.bytes(), page_bytes_, orders_->dst);
      case Ask::kWindow:
        return RawTcp::receive(fd_, RawMode::kWindow, memory_.bytes(), page_bytes_, orders_->dst);
      case Ask::kKvmend:
      case Ask::kEnd:
        return true;  // the engine's own threads do it
    }
    return false;
  }

  const MoverSettings& settings_;
  Pair& pair_;
  std::size_t total_;
  Memory memory_;
  int fd_ = -1;
  RawSource source_;
  std::size_t page_bytes_ = 0;
  std::unique_ptr<Orders> orders_;
};

}  // namespace

void run_target(const MoverSettings& settings, Pair& pair) {
  Target(settings, pair).run();
}

}  // namespace kvmend::bench
