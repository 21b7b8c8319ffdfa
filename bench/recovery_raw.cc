// Raw engines: targets that are written to, and the load that writes to them without pause.
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <memory>
#include <mutex>
#include <sstream>
#include <thread>

#include "kvmend/engine.h"
#include "recovery_common.h"

namespace kvmend::bench {
namespace {

std::unique_ptr<Engine> start_engine(const RecoverySettings& s, std::uint16_t port) {
  EngineOptions options;
  options.host = s.host;
  options.port = port;
  options.insecure = true;
  if (!s.local) options.local = LocalMode::kOff;
  auto engine = Engine::create(options);
  if (!engine) give_up(engine.error().to_string());
  return std::move(*engine);
}

/// Forks a child that holds whatever it inherited until the harness closes our standard input.
void leave_child_behind() {
  const pid_t child = fork();
  if (child < 0) give_up("fork");
  if (child > 0) {
    say({{"event", "child"}, {"pid", child}});
    return;
  }
  pollfd hangup{0, 0, 0};
  while ((hangup.revents & POLLHUP) == 0) poll(&hangup, 1, 1000);
  _exit(0);
}

void register_extra(Engine& engine, const RecoverySettings& s) {
  const std::size_t bytes = s.registered_mib << 20U;
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) give_up("can't map the registered memory");
  if (s.huge_pages) madvise(at, bytes, MADV_HUGEPAGE);
  std::memset(at, 1, bytes);
  const Status status = engine.register_memory(at, bytes);
  if (!status.is_ok()) give_up(status.to_string());
}

}  // namespace

int run_target(const RecoverySettings& s) {
  const std::size_t pool_bytes = s.pool_kib << 10U;
  std::vector<std::unique_ptr<CanaryPool>> pools;
  std::vector<std::unique_ptr<Engine>> engines;
  nlohmann::json list = nlohmann::json::array();
  for (std::size_t i = 0; i < s.ports.size(); ++i)
    pools.push_back(
        std::make_unique<CanaryPool>(s.base == 0 ? 0 : s.base + i * pool_bytes, pool_bytes));
  for (std::size_t i = 0; i < s.ports.size(); ++i) {
    engines.push_back(start_engine(s, s.ports[i]));
    const Status status = engines.back()->register_memory(pools[i]->data(), pool_bytes);
    if (!status.is_ok()) give_up(status.to_string());
    list.push_back({{"session", engines.back()->session_id()}, {"base", pools[i]->address()}});
  }
  const double ready = monotonic_seconds();
  if (s.registered_mib > 0) register_extra(*engines.front(), s);
  if (s.fork_child) leave_child_behind();
  say({{"event", "ready"}, {"t", ready}, {"engines", list}});
  std::string line;
  while (std::getline(std::cin, line) && line != "quit") {
    if (line != "stale") continue;
    std::uint64_t changed = 0;
    for (const auto& pool : pools) changed += pool->changed(0, pool_bytes);
    say({{"event", "stale"}, {"bytes", changed}});
  }
  return 0;
}

namespace {

/// As it stands in the log file; bench/recovery.py reads it.
struct Record {
  double submitted;
  double done;
  std::uint32_t session;
  std::uint32_t code;
};

class Load {
 public:
  explicit Load(const RecoverySettings& s)
      : settings_(s), engine_(start_engine(s, 0)), pool_(0, s.pool_kib << 10U) {
    std::memset(pool_.data(), static_cast<int>(CanaryPool::kPayload), pool_.size());
    const Status status = engine_->register_memory(pool_.data(), pool_.size());
    if (!status.is_ok()) give_up(status.to_string());
    records_.reserve(1U << 20U);
  }

  int run() {
    std::jthread submitter([this](const std::stop_token& stop) { submit_loop(stop); });
    std::string line;
    while (std::getline(std::cin, line)) {
      std::istringstream words(line);
      std::string verb;
      words >> verb;
      if (verb == "add") {
        add(words);
      } else if (verb == "reopen") {
        reopen(words);
      } else if (verb == "info") {
        info();
      } else if (verb == "finish") {
        break;
      }
    }
    submitter.request_stop();
    submitter.join();
    finish();
    return 0;
  }

 private:
  struct Target {
    std::string session;
    std::uint64_t base = 0;
    std::atomic<std::uint32_t> open{0};
    std::uint32_t next_page = 0;
    double due = 0;
  };

  void add(std::istringstream& words) {
    auto target = std::make_unique<Target>();
    words >> target->session >> target->base;
    if (auto opened = engine_->open_session(target->session, std::chrono::seconds(10)); !opened)
      give_up(target->session + ": " + opened.error().to_string());
    const std::scoped_lock lock(mutex_);
    target->due = monotonic_seconds() +
                  settings_.period_ms * 1e-3 * static_cast<double>(targets_.size() % 16) / 16;
    targets_.push_back(std::move(target));
    say({{"event", "added"}});
  }

  void reopen(std::istringstream& words) {
    std::string session;
    words >> session;
    const auto opened = engine_->open_session(session, std::chrono::seconds(10));
    say({{"event", "reopened"}, {"ok", opened.has_value()}, {"t", monotonic_seconds()}});
  }

  void submit_loop(const std::stop_token& stop) {
    std::vector<Target*> targets;
    while (!stop.stop_requested()) {
      {
        const std::scoped_lock lock(mutex_);
        targets.clear();
        for (const auto& target : targets_) targets.push_back(target.get());
      }
      const double now = monotonic_seconds();
      for (std::uint32_t i = 0; i < targets.size(); ++i) {
        Target& target = *targets[i];
        if (now < target.due) continue;
        target.due = std::max(target.due + settings_.period_ms * 1e-3, now);
        if (target.open.load() < settings_.cap) submit(i, target);
      }
      std::this_thread::sleep_for(std::chrono::microseconds(500));
    }
  }

  void submit(std::uint32_t index, Target& target) {
    const std::size_t pages = pool_.size() / settings_.page_bytes;
    const std::size_t at = (target.next_page++ % pages) * settings_.page_bytes;
    const Slice slice{pool_.data() + at, target.base + at, settings_.page_bytes};
    TransferOptions options;
    options.deadline =
        std::chrono::nanoseconds(static_cast<std::int64_t>(settings_.deadline_s * 1e9));
    const double start = monotonic_seconds();
    target.open.fetch_add(1);
    options.on_done = [this, index, &target, start](const Status& status) {
      note({start, monotonic_seconds(), index, static_cast<std::uint32_t>(status.code())}, status);
      target.open.fetch_sub(1);
    };
    const auto handle =
        engine_->submit(target.session, Opcode::kWrite, std::span(&slice, 1), std::move(options));
    if (handle) return;
    note({start, monotonic_seconds(), index, static_cast<std::uint32_t>(handle.error().code())},
         handle.error());
    target.open.fetch_sub(1);
  }

  void note(const Record& record, const Status& status) {
    const std::scoped_lock lock(records_mutex_);
    records_.push_back(record);
    if (!status.is_ok() && ++complaints_ <= 20)
      std::fprintf(stderr, "request failed: %s\n", status.to_string().c_str());
  }

  void info() {
    const double before = monotonic_seconds();
    const auto sessions = engine_->sessions();
    const double now = (before + monotonic_seconds()) / 2;
    nlohmann::json list = nlohmann::json::array();
    for (const SessionInfo& session : sessions) {
      nlohmann::json history = nlohmann::json::array();
      for (const SessionTransition& step : session.history)
        history.push_back({now - step.seconds_ago, step.from, step.to, step.cause});
      list.push_back({{"session", session.session_id},
                      {"state", session.state},
                      {"transport", session.transport},
                      {"recoveries", session.recoveries},
                      {"retries", session.retries},
                      {"history", std::move(history)}});
    }
    say({{"event", "info"}, {"sessions", std::move(list)}});
  }

  void finish() {
    const auto idle = [this] {
      const std::scoped_lock lock(mutex_);
      for (const auto& target : targets_)
        if (target->open.load() > 0) return false;
      return true;
    };
    const double until = monotonic_seconds() + settings_.deadline_s + 2;
    while (!idle() && monotonic_seconds() < until)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const bool settled = idle();
    engine_->shutdown(std::chrono::milliseconds(200));
    std::FILE* file = std::fopen(settings_.log.c_str(), "wb");
    if (file == nullptr) give_up("can't write " + settings_.log);
    std::fwrite(records_.data(), sizeof(Record), records_.size(), file);
    std::fclose(file);
    say({{"event", "finished"}, {"records", records_.size()}, {"settled", settled}});
  }

  const RecoverySettings& settings_;
  std::unique_ptr<Engine> engine_;
  CanaryPool pool_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Target>> targets_;
  std::mutex records_mutex_;
  std::vector<Record> records_;
  int complaints_ = 0;
};

}  // namespace

int run_load(const RecoverySettings& s) {
  Load load(s);
  say({{"event", "ready"}, {"t", monotonic_seconds()}});
  return load.run();
}

}  // namespace kvmend::bench
