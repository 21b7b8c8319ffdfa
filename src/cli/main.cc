// The `kvmend` program.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <exception>

#include "cli/common.h"
#include "env/posix/stderr_log.h"

namespace {

int run(int argc, char** argv) {
  CLI::App app{"Moves KV-cache pages between prefill and decode engines, and heals its sessions"};
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string(KVMEND_VERSION));
  std::string level = "info";
  app.add_option("--log-level", level, "trace, debug, info, warn, error or off")
      ->capture_default_str()
      ->check(CLI::IsMember({"trace", "debug", "info", "warn", "error", "off"}));
  app.parse_complete_callback([&level] { spdlog::set_level(spdlog::level::from_str(level)); });
  int exit_code = 0;
  kvmend::cli::add_bench(app, exit_code);
  kvmend::cli::add_bootstrap(app, exit_code);
  kvmend::cli::add_probe(app, exit_code);
  kvmend::cli::add_serve(app, exit_code);
  kvmend::cli::add_status(app, exit_code);
  CLI11_PARSE(app, argc, argv);
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    kvmend::env::posix::log_to_stderr("kvmend");
    return run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "kvmend: {}\n", error.what());
    return 1;
  }
}
