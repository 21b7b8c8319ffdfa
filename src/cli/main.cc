// The `kvmend` program.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "cli/common.h"
#include "env/posix/stderr_log.h"

namespace {

// The first word that isn't an option of the program itself: the command that is meant.
std::string first_word(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--log-level") {
      ++i;
    } else if (!word.starts_with("-")) {
      return std::string(word);
    }
  }
  return {};
}

// 0 for --help and --version; 2 for what can't be understood, like other programs.
int explain(const CLI::App& app, const CLI::ParseError& error, const std::string& word) {
  if (error.get_exit_code() == 0) return app.exit(error);
  const auto commands = app.get_subcommands([](const CLI::App*) { return true; });
  const bool known =
      std::ranges::any_of(commands, [&](const CLI::App* c) { return c->get_name() == word; });
  if (known || (word.empty() && error.get_name() != "RequiredError")) {
    kvmend::cli::notice("kvmend: {}\nRun with --help for more information.\n", error.what());
    return 2;
  }
  std::vector<std::string> names;
  for (const CLI::App* command : commands) names.push_back(command->get_name());
  const std::string problem =
      word.empty() ? "no command is given" : fmt::format("there is no command '{}'", word);
  kvmend::cli::notice("kvmend: {}; the commands are {}. Run with --help for more information.\n",
                      problem, fmt::join(names, ", "));
  return 2;
}

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
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return explain(app, error, first_word(argc, argv));
  }
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  using kvmend::cli::finish;
  kvmend::cli::prepare_output();
  try {
    kvmend::env::posix::log_to_stderr("kvmend");
    return finish(run(argc, argv));
  } catch (const std::exception& error) {
    kvmend::cli::write_error("kvmend: ");
    kvmend::cli::write_error(error.what());
    kvmend::cli::write_error("\n");
    return finish(1);
  }
}
