// The processes of `./dev bench recovery`; bench/recovery.py starts them, breaks them and reads
// what they saw. Commands come as lines, events go out as JSON lines.
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "recovery_common.h"

namespace kvmend::bench {

void give_up(const std::string& what) {
  std::fprintf(stderr, "recovery_peer: %s\n", what.c_str());
  std::fflush(nullptr);
  std::_Exit(1);
}

double monotonic_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void say(const nlohmann::json& event) {
  static std::mutex mutex;
  const std::string line = event.dump() + "\n";
  const std::scoped_lock lock(mutex);
  std::fwrite(line.data(), 1, line.size(), stdout);
  std::fflush(stdout);
}

CanaryPool::CanaryPool(std::uint64_t base, std::size_t bytes) : size_(bytes) {
  const int fixed = base == 0 ? 0 : MAP_FIXED_NOREPLACE;
  void* at = mmap(reinterpret_cast<void*>(base),  // NOLINT(performance-no-int-to-ptr)
                  bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | fixed, -1, 0);
  if (at == MAP_FAILED) give_up("can't map the pool");
  data_ = static_cast<std::byte*>(at);
  fill(0, bytes);
}

CanaryPool::~CanaryPool() {
  munmap(data_, size_);
}

void CanaryPool::fill(std::size_t from, std::size_t count) const {
  std::memset(data_ + from, static_cast<int>(kCanary), count);
}

std::uint64_t CanaryPool::changed(std::size_t from, std::size_t count) const {
  return static_cast<std::uint64_t>(
      std::count_if(data_ + from, data_ + from + count, [](std::byte b) { return b != kCanary; }));
}

}  // namespace kvmend::bench

int main(int argc, char** argv) {
  using kvmend::bench::RecoverySettings;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  signal(SIGPIPE, SIG_IGN);
  RecoverySettings s;
  CLI::App app{"A process of ./dev bench recovery"};
  app.require_subcommand(1);
  app.add_option("--host", s.host, "address to listen at");
  app.add_flag("--local", s.local, "let peers of this host use the local transport");
  app.add_option("--ports", s.ports, "one engine each")->delimiter(',');
  app.add_option("--base", s.base, "address of the first pool");
  app.add_option("--pool-kib", s.pool_kib, "size of a pool");
  app.add_option("--page-bytes", s.page_bytes, "bytes of a request, of a page");
  app.add_option("--period-ms", s.period_ms, "between requests of a session");
  app.add_option("--cap", s.cap, "unfinished requests of a session");
  app.add_option("--deadline", s.deadline_s, "of a request, in seconds");
  app.add_option("--log", s.log, "file for the load's records");
  app.add_option("--registered-mib", s.registered_mib, "further touched, registered memory");
  app.add_flag("--huge-pages", s.huge_pages, "ask for huge pages for it");
  app.add_flag("--fork-child", s.fork_child, "fork a child that outlives the target");
  app.add_option("--prefill", s.prefill, "session id of the prefill engine");
  app.add_option("--board", s.board, "file that decode and prefill share");
  app.add_option("--generation", s.generation, "life of this decode process");
  app.add_option("--room-pages", s.room_pages, "pages of a room");
  app.add_option("--abort-percent", s.abort_percent, "rooms that decode aborts");
  app.add_option("--engines", s.engines, "decode engines that prefill serves");
  const CLI::App* target = app.add_subcommand("target", "engines that are written to");
  const CLI::App* load = app.add_subcommand("load", "writes to targets all the time");
  const CLI::App* decode = app.add_subcommand("decode", "opens rooms all the time");
  const CLI::App* prefill = app.add_subcommand("prefill", "fills decode's rooms");
  app.fallthrough();
  for (CLI::App* sub : app.get_subcommands({})) sub->fallthrough();
  CLI11_PARSE(app, argc, argv);
  if (target->parsed()) return run_target(s);
  if (load->parsed()) return run_load(s);
  if (decode->parsed()) return run_decode(s);
  if (prefill->parsed()) return run_prefill(s);
  return 2;
}
