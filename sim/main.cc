// kvmend-sim: whole clusters of the real code under seeded faults, with checkers for the safety
// rules.
#include <fmt/format.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "sim/batch.h"
#include "sim/breaks.h"
#include "sim/cluster.h"
#include "sim/many_sessions.h"
#include "sim/scenarios.h"

namespace kvmend::sim {
namespace {

constexpr const char* kUsage =
    "kvmend-sim [--seed N] [--seeds N] [--scenario NAME|all] [--break NAME|all] [--jobs N]\n"
    "           [--json FILE] [--twice] [--log] [--list] [--sessions N]\n"
    "  --seed N       the first seed (default 1); with --seeds 1 it replays one run\n"
    "  --seeds N      how many (default 1; with --break 200)\n"
    "  --break NAME   breaks a safety rule on purpose: succeeds when a checker notices\n"
    "  --sessions N   measures one engine with N failed sessions instead\n"
    "  --twice        runs each seed twice and compares the traces\n"
    "  --log          every log line of the code, on stderr\n";

struct Arguments {
  std::uint64_t seed = 1;
  std::optional<std::uint64_t> seeds;
  std::string scenario;
  std::string fault = "none";
  std::string json;
  std::size_t sessions = 0;
  unsigned jobs = std::max(1U, std::thread::hardware_concurrency());
  bool twice = false;
  bool log = false;
  bool list = false;
};

/// Simulated time in front of each line: the wall's says nothing here.
class SimulatedTime final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg&, const std::tm&,
              spdlog::memory_buf_t& line) override {
    fmt::format_to(std::back_inserter(line), "{:.6f}", Cluster::seconds_of_this_thread());
  }
  [[nodiscard]] std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<SimulatedTime>();
  }
};

void log_with_simulated_time() {
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<SimulatedTime>('*').set_pattern("[%* s] [%l] %v");
  spdlog::set_formatter(std::move(formatter));
}

bool to_number(const std::string& text, auto& number) {
  const auto result = std::from_chars(text.data(), text.data() + text.size(), number);
  return result.ec == std::errc{} && result.ptr == text.data() + text.size();
}

std::optional<Arguments> parse(std::vector<std::string> words) {
  Arguments arguments;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "--log" || word == "--list" || word == "--twice") {
      arguments.log = arguments.log || word == "--log";
      arguments.list = arguments.list || word == "--list";
      arguments.twice = arguments.twice || word == "--twice";
      continue;
    }
    if (i + 1 == words.size()) return std::nullopt;
    const std::string& value = words[++i];
    bool good = true;
    if (word == "--seed") {
      good = to_number(value, arguments.seed);
    } else if (word == "--seeds") {
      good = to_number(value, arguments.seeds.emplace());
    } else if (word == "--sessions") {
      good = to_number(value, arguments.sessions);
    } else if (word == "--jobs") {
      good = to_number(value, arguments.jobs) && arguments.jobs > 0;
    } else if (word == "--scenario") {
      arguments.scenario = value;
      good = value == "all" || find_scenario(value) != nullptr;
    } else if (word == "--break") {
      arguments.fault = value;
      good = value == "all" || value == "none" || is_break(value);
    } else if (word == "--json") {
      arguments.json = value;
    } else {
      good = false;
    }
    if (!good) {
      fmt::print(stderr, "kvmend-sim: bad {} {}\n", word, value);
      return std::nullopt;
    }
  }
  return arguments;
}

std::vector<Batch> plan(const Arguments& arguments) {
  std::vector<Batch> batches;
  const bool broken = arguments.fault != "none";
  const std::uint64_t seeds =
      arguments.seeds.value_or(broken && arguments.scenario.empty() ? 200 : 1);
  const auto add = [&](std::string_view fault, const Scenario& scenario) {
    batches.push_back({std::string(fault), &scenario, arguments.seed, seeds, arguments.twice});
  };
  const auto add_scenarios = [&](std::string_view fault, std::string_view wanted) {
    for (const Scenario& scenario : scenarios())
      if (wanted == "all" || wanted == scenario.name) add(fault, scenario);
  };
  if (!broken) {
    add_scenarios("none", arguments.scenario.empty() ? "all" : arguments.scenario);
    return batches;
  }
  for (const Break& one : breaks())
    if (arguments.fault == "all" || arguments.fault == one.name)
      add_scenarios(one.name, arguments.scenario.empty() ? one.scenario
                                                         : std::string_view(arguments.scenario));
  return batches;
}

void print_row(const Row& row) {
  fmt::print(
      "{:<30}{:<13}{:>6} seeds {:>5} violations {:>8.1f} s simulated {:>7.2f} s cpu  ok {} "
      "failed {}  slowest recovery {:.3f} s\n",
      row.batch.fault, row.batch.scenario->name, row.batch.seeds, row.violations,
      row.virtual_seconds, row.cpu_seconds, row.succeeded, row.failed,
      row.slowest_recovery_seconds);
  if (row.aborted_midway > 0) fmt::print("  {} aborted midway\n", row.aborted_midway);
  if (row.violations == 0) return;
  fmt::print("  rule {} at {:.6f} s: {}\n  replay: {}\n", row.first.rule,
             to_seconds(row.first.at.time_since_epoch()), row.first.text,
             replay_command(row.batch.scenario->name, row.first_seed, row.batch.fault));
}

int run_all(const Arguments& arguments) {
  const std::vector<Row> rows = run_batches(plan(arguments), arguments.jobs);
  bool good = true;
  for (const Row& row : rows) {
    print_row(row);
    good = good && (row.violations > 0) == (row.batch.fault != "none");
  }
  std::uint64_t restarts = 0;
  std::uint64_t aborts = 0;
  std::uint64_t violations = 0;
  for (const Row& row : rows) {
    restarts += row.restarts;
    aborts += row.aborts;
    violations += row.violations;
  }
  fmt::print("{} restarts and {} aborts in all; {} violations\n", restarts, aborts, violations);
  if (rows.size() == 1)
    fmt::print("  trace {:016x}, {} events\n", rows[0].trace_hash, rows[0].steps);
  if (!arguments.json.empty()) std::ofstream(arguments.json) << to_json(rows);
  if (!good)
    fmt::print(stderr, "kvmend-sim: {}\n",
               arguments.fault == "none" ? "a safety rule was broken" : "a break was not noticed");
  return good ? 0 : 1;
}

}  // namespace

int main(std::vector<std::string> words) {
  const auto arguments = parse(std::move(words));
  if (!arguments) {
    fmt::print(stderr, "{}", kUsage);
    return 2;
  }
  spdlog::set_level(arguments->log ? spdlog::level::debug : spdlog::level::off);
  log_with_simulated_time();
  print_replay_on_abort();
  if (arguments->list) {
    for (const Scenario& scenario : scenarios())
      fmt::print("{:<14}{}\n", scenario.name, scenario.about);
    for (const Break& one : breaks())
      fmt::print("--break {:<30}{} (in {})\n", one.name, one.about, one.scenario);
    return 0;
  }
  if (arguments->sessions > 0) {
    const std::string json = measure_many_sessions(arguments->sessions, arguments->seed);
    fmt::print("{}", json);
    if (!arguments->json.empty()) std::ofstream(arguments->json) << json;
    return 0;
  }
  return run_all(*arguments);
}

}  // namespace kvmend::sim

int main(int argc, char** argv) {
  return kvmend::sim::main(std::vector<std::string>(argv + 1, argv + argc));
}
