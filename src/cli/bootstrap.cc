// kvmend bootstrap: the registry where decode finds prefill ranks.
#include <fmt/format.h>

#include <memory>

#include "bootstrap/server.h"
#include "cli/common.h"
#include "env/posix/clock.h"

namespace kvmend::cli {
namespace {

struct Arguments {
  std::string listen = "127.0.0.1:8998";
  bool insecure = false;
};

int serve(const Arguments& arguments) {
  hold_signals();
  const auto listen = parse_address(arguments.listen, bootstrap::limits::kDefaultPort);
  if (!listen) return complain(listen.error());
  const env::posix::PosixClock clock;
  bootstrap::ServerOptions options;
  options.listen = *listen;
  options.allow_remote = arguments.insecure;
  auto server = bootstrap::Server::start(options, clock);
  if (!server) return complain(server.error());
  print("{}\n", (*server)->url());
  notice("registry at {}; stop with Ctrl-C\n", (*server)->url());
  wait_for_signal();
  return 0;
}

}  // namespace

void add_bootstrap(CLI::App& app, int& exit_code) {
  CLI::App* command =
      app.add_subcommand("bootstrap", "run the registry where decode finds prefill ranks");
  auto arguments = std::make_shared<Arguments>();
  command->add_option("--listen", arguments->listen, "address and port")->capture_default_str();
  command->add_flag("--insecure", arguments->insecure, "allow an address beyond loopback");
  command->callback([arguments, &exit_code] { exit_code = serve(*arguments); });
}

}  // namespace kvmend::cli
