#include "sim/batch.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <ctime>
#include <mutex>
#include <thread>

#include "sim/arena.h"
#include "sim/breaks.h"

namespace kvmend::sim {
namespace {

thread_local char replay_line[256];

extern "C" void on_abort(int) {
  // Only what is safe in a signal handler.
  static_cast<void>(!::write(STDERR_FILENO, replay_line, std::strlen(replay_line)));
  std::signal(SIGABRT, SIG_DFL);
}

double thread_cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

void run_one(const Batch& batch, std::uint64_t seed, Row& row, std::mutex& mutex) {
  const std::string command = replay_command(batch.scenario->name, seed, batch.fault);
  fmt::format_to_n(replay_line, sizeof(replay_line) - 1, "\nA check failed in: {}\n{}", command,
                   '\0');
  const double before = thread_cpu_seconds();
  const Broken broken(batch.fault);
  Report report = batch.scenario->run(seed);
  if (batch.twice && !report.violation) {
    const Report again = batch.scenario->run(seed);
    if (again.trace_hash != report.trace_hash)
      report.violation = Violation{0,
                                   fmt::format("not repeatable: trace {:016x}, then {:016x}",
                                               report.trace_hash, again.trace_hash),
                                   {}};
  }
  const std::lock_guard lock(mutex);
  row.cpu_seconds += thread_cpu_seconds() - before;
  row.steps += report.steps;
  row.trace_hash += report.trace_hash;
  row.succeeded += report.succeeded;
  row.failed += report.failed;
  row.aborted_midway += report.aborted_midway;
  row.restarts += report.restarts;
  row.aborts += report.aborts;
  row.virtual_seconds += report.virtual_seconds;
  row.slowest_recovery_seconds =
      std::max(row.slowest_recovery_seconds, report.slowest_recovery_seconds);
  if (!report.violation) return;
  if (row.violations == 0 || seed < row.first_seed) {
    row.first_seed = seed;
    row.first = *report.violation;
  }
  ++row.violations;
}

}  // namespace

void print_replay_on_abort() {
  std::signal(SIGABRT, on_abort);
}

std::string replay_command(std::string_view scenario, std::uint64_t seed, std::string_view fault) {
  return fmt::format("kvmend-sim --scenario {} --seed {}{}", scenario, seed,
                     fault == "none" ? std::string() : fmt::format(" --break {}", fault));
}

std::vector<Row> run_batches(const std::vector<Batch>& batches, unsigned threads) {
  std::vector<Row> rows;
  std::uint64_t total = 0;
  for (const Batch& batch : batches) {
    Row row;
    row.batch = batch;
    rows.push_back(row);
    total += batch.seeds;
  }
  Arena::of_this_thread();  // before the other threads, so that a replay finds the same addresses
  std::mutex mutex;
  std::atomic<std::uint64_t> next{0};
  const auto work = [&] {
    for (std::uint64_t number = next.fetch_add(1); number < total; number = next.fetch_add(1)) {
      std::uint64_t rest = number;
      std::size_t index = 0;
      while (rest >= batches[index].seeds) rest -= batches[index++].seeds;
      run_one(batches[index], batches[index].first_seed + rest, rows[index], mutex);
    }
  };
  std::vector<std::jthread> workers;
  for (unsigned i = 1; i < threads; ++i) workers.emplace_back(work);
  work();
  workers.clear();
  return rows;
}

std::string to_json(const std::vector<Row>& rows) {
  std::string json = "[";
  for (const Row& row : rows) {
    json += fmt::format(
        "{}\n  {{\"break\": \"{}\", \"scenario\": \"{}\", \"seeds\": {}, \"violations\": {}, "
        "\"first_seed\": {}, \"restarts\": {}, \"aborts\": {}, \"succeeded\": {}, "
        "\"failed\": {}}}",
        json.size() > 1 ? "," : "", row.batch.fault, row.batch.scenario->name, row.batch.seeds,
        row.violations, row.violations > 0 ? std::to_string(row.first_seed) : "null", row.restarts,
        row.aborts, row.succeeded, row.failed);
  }
  return json + "\n]\n";
}

}  // namespace kvmend::sim
