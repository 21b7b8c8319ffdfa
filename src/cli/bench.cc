// kvmend bench: writes to a `kvmend serve` for a while and says how fast, in the manner of
// ib_write_bw.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include "cli/common.h"
#include "kvmend/engine.h"

namespace kvmend::cli {
namespace {

struct BenchOptions {
  EngineOptions engine;
  std::string peer;
  std::size_t page_bytes = 65536;
  std::size_t batch_mib = 64;
  double seconds = 3;
  bool read = false;
  bool checksum = false;
};

using SteadyClock = std::chrono::steady_clock;

double since(SteadyClock::time_point start) {
  return std::chrono::duration<double>(SteadyClock::now() - start).count();
}

/// One slice per page; the pages alternate between the two halves of the peer's region so that
/// they don't merge into one run.
std::vector<Slice> make_slices(std::byte* local, std::uint64_t remote, std::size_t pages,
                               std::size_t page_bytes) {
  std::vector<Slice> slices;
  slices.reserve(pages);
  for (std::size_t i = 0; i < pages; ++i) {
    const std::size_t there = i % 2 == 0 ? i / 2 : pages - 1 - i / 2;
    slices.push_back({local + i * page_bytes, remote + there * page_bytes, page_bytes});
  }
  return slices;
}

int bench(const BenchOptions& options) {
  auto engine = Engine::create(options.engine);
  if (!engine) return complain(engine.error());
  const auto regions = (*engine)->peer_regions(options.peer, std::chrono::seconds(5));
  if (!regions) return complain(regions.error());
  if (regions->empty())
    return complain({Code::kNotRegistered, Origin::kPeer,
                     options.peer + " opens no memory; start one with: kvmend serve"});
  const auto largest =
      *std::ranges::max_element(*regions, {}, [](const auto& region) { return region.second; });
  const std::size_t bytes = std::min<std::uint64_t>(options.batch_mib << 20U, largest.second);
  const std::size_t pages = bytes / options.page_bytes;
  if (pages == 0)
    return complain({Code::kInvalidArgument, Origin::kCaller,
                     fmt::format("a page of {} bytes is larger than the {} bytes that can be moved",
                                 options.page_bytes, bytes)});
  std::vector<std::byte> local(pages * options.page_bytes);
  const Status registered =
      (*engine)->register_memory(local.data(), local.size(), MemoryKind::kHost, Access::kNone);
  if (!registered.is_ok()) return complain(registered);
  const std::vector<Slice> slices =
      make_slices(local.data(), largest.first, pages, options.page_bytes);
  std::vector<double> times;
  const auto start = SteadyClock::now();
  do {
    const auto one = SteadyClock::now();
    TransferOptions transfer;
    transfer.checksum = options.checksum;
    const Status status = (*engine)->transfer(
        options.peer, options.read ? Opcode::kRead : Opcode::kWrite, slices, std::move(transfer));
    if (!status.is_ok()) return complain(status);
    times.push_back(since(one));
  } while (since(start) < options.seconds);  // at least one, whatever was asked for (NaN)
  std::ranges::sort(times);
  const double total = static_cast<double>(times.size() * local.size());
  print(
      "{} {} pages of {} bytes, {} per batch: {:.2f} GB/s; batch p50 {:.2f} ms, p99 {:.2f} "
      "ms over {} batches\n",
      options.read ? "read" : "wrote", times.size() * pages, options.page_bytes, pages,
      total / since(start) / 1e9, times[times.size() / 2] * 1e3,
      times[std::min(times.size() - 1, times.size() * 99 / 100)] * 1e3, times.size());
  return 0;
}

}  // namespace

void add_bench(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("bench", "measure transfers to a running kvmend serve");
  auto options = std::make_shared<BenchOptions>();
  command->add_option("session", options->peer, "session id of the target, host:port")->required();
  add_engine_options(*command, options->engine);
  command->add_option("--page-bytes", options->page_bytes, "size of a page")
      ->capture_default_str()
      ->check(CLI::Range(std::size_t{1}, std::size_t{1} << 30U));
  command->add_option("--batch-mib", options->batch_mib, "bytes of one batch, in MiB")
      ->capture_default_str()
      ->check(CLI::Range(std::size_t{1}, std::size_t{1} << 16U));
  command->add_option("--seconds", options->seconds, "how long")
      ->capture_default_str()
      ->check(CLI::Range(0.1, 86'400.0));
  command->add_flag("--read", options->read, "read instead of writing");
  command->add_flag("--checksum", options->checksum, "XXH3 over every chunk");
  command->callback([options, &exit_code] { exit_code = bench(*options); });
}

}  // namespace kvmend::cli
