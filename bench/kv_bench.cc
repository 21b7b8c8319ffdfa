// The KV manager against the clock and against its own engine, between two processes on loopback.
// Prints one JSON object per case.
#include "kv_bench.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>

namespace kvmend::bench {
namespace {

/// The cases of the targets (docs/benchmarks.md), with requests per round that take about 0.5 s.
std::vector<KvShape> shapes(bool sweep) {
  constexpr std::uint32_t k4 = 4096;
  constexpr std::uint32_t k16 = 16'384;
  constexpr std::uint32_t k64 = 65'536;
  std::vector<KvShape> all{
      {.name = "control", .requests = 1'000},
      {.name = "control_c8", .concurrency = 8, .requests = 4'000},
      {.name = "1MiB", .buffers = 64, .item_bytes = k16, .requests = 400},
      {.name = "1MiB_c8", .buffers = 64, .item_bytes = k16, .concurrency = 8, .requests = 1'200},
      {.name = "16MiB", .pages = 16, .buffers = 16, .item_bytes = k64, .requests = 60},
      {.name = "frag4096", .pages = 64, .buffers = 64, .item_bytes = k4, .requests = 40},
  };
  // Prefill tp 1, decode tp 4: each page is cut into a strip per token, staged or not.
  const auto heads = [&](std::uint32_t strip, bool staged) {
    all.push_back({.name = fmt::format("heads{}{}", strip, staged ? "" : "_direct"),
                   .pages = 16,
                   .buffers = 16,
                   .item_bytes = 16 * strip,
                   .requests = std::max(10U, 200'000 / strip),
                   .decode_ranks = 4,
                   .stage_below = staged ? 1U << 20U : 0U});
  };
  for (const std::uint32_t strip : {128U, 256U, 512U, 1'024U, 2'048U, 4'096U})
    for (const bool staged : {true, false})
      if (sweep || strip == 256) heads(strip, staged);
  return all;
}

int run(const KvSettings& settings, const std::vector<std::string>& only, bool sweep) {
  const auto wanted = [&](const std::string& name) {
    return only.empty() || std::ranges::find(only, name) != only.end();
  };
  const auto show = [](const nlohmann::json& row) {
    std::printf("%s\n", row.dump().c_str());
    std::fflush(stdout);
  };
  for (const KvShape& shape : shapes(sweep))
    if (wanted(shape.name)) show(run_speed(shape, settings));
  if (wanted("rooms")) show(run_rooms(settings));
  if (wanted("switch")) show(run_switch(settings));
  if (wanted("abort")) show(run_aborts(settings));
  return 0;
}

}  // namespace
}  // namespace kvmend::bench

int main(int argc, char** argv) {
  kvmend::bench::KvSettings settings;
  std::vector<std::string> only;
  CLI::App app{"The KV manager between two processes"};
  app.add_option("--only", only, "cases: control, 1MiB, ..., rooms, switch, abort")->delimiter(',');
  app.add_option("--rounds", settings.rounds, "measured rounds of each case");
  app.add_option("--rooms", settings.rooms, "rooms at once");
  app.add_option("--waves", settings.waves, "how often so many, once everything bounded is full");
  app.add_option("--aborts", settings.aborts, "aborted requests");
  app.add_flag("--local", settings.local, "the local transport instead of tcp");
  bool sweep = false;
  app.add_flag("--sweep", sweep, "strips of every length, staged and not");
  app.add_flag("--pin", settings.pin, "prefill on one core, decode on another");
  CLI11_PARSE(app, argc, argv);
  return kvmend::bench::run(settings, only, sweep);
}
