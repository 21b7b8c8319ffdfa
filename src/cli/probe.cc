// kvmend probe: is that engine usable? A handshake, then a real write and read-back.
#include <fmt/format.h>

#include <memory>

#include "cli/common.h"
#include "kvmend/engine.h"

namespace kvmend::cli {
namespace {

int probe(const std::string& peer, int timeout_ms) {
  auto engine = Engine::create({});
  if (!engine) return complain(engine.error());
  const Status status = (*engine)->probe(peer, std::chrono::milliseconds(timeout_ms));
  if (!status.is_ok()) return complain(status);
  print("{} is usable: bytes went there and came back\n", peer);
  return 0;
}

}  // namespace

void add_probe(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "probe", "check that an engine answers and that data really gets there and back");
  auto peer = std::make_shared<std::string>();
  auto timeout = std::make_shared<int>(1000);
  command->add_option("session", *peer, "the engine's session id, host:port")->required();
  command->add_option("--timeout-ms", *timeout, "how long to wait")
      ->capture_default_str()
      ->check(CLI::Range(1, 3'600'000));
  command->callback([peer, timeout, &exit_code] { exit_code = probe(*peer, *timeout); });
}

}  // namespace kvmend::cli
