// kvmend serve: an engine with registered memory, as a target for tests and measurements.
#include <fmt/format.h>

#include <cstdlib>
#include <memory>
#include <new>

#include "cli/common.h"
#include "kvmend/engine.h"

namespace kvmend::cli {
namespace {

struct ServeOptions {
  EngineOptions engine;
  std::size_t mib = 256;
};

int serve(const ServeOptions& options) {
  hold_signals();
  auto engine = Engine::create(options.engine);
  if (!engine) return complain(engine.error());
  const std::size_t bytes = options.mib << 20U;
  const std::unique_ptr<std::byte, decltype(&std::free)> memory(
      static_cast<std::byte*>(
          std::aligned_alloc(2U << 20U, (bytes + (2U << 20U) - 1) & ~std::size_t{(2U << 20U) - 1})),
      &std::free);
  if (!memory)
    return complain({Code::kResourceExhausted, Origin::kLocal,
                     fmt::format("{} MiB of memory can't be had", options.mib)});
  const Status registered = (*engine)->register_memory(memory.get(), bytes);
  if (!registered.is_ok()) return complain(registered);
  print("{}\n", (*engine)->session_id());
  notice("serving {} MiB; session id {}{}{}; stop with Ctrl-C\n", options.mib,
         (*engine)->session_id(), (*engine)->admin_url().empty() ? "" : "; admin ",
         (*engine)->admin_url());
  wait_for_signal();
  const EngineStats stats = (*engine)->stats();
  (*engine)->shutdown(options.engine.shutdown_grace);
  notice("received {}, sent {}, refused {} frames\n",
         human_bytes(static_cast<double>(stats.bytes_received)),
         human_bytes(static_cast<double>(stats.bytes_sent)), stats.frames_refused);
  return 0;
}

}  // namespace

void add_serve(CLI::App& app, int& exit_code) {
  CLI::App* command =
      app.add_subcommand("serve", "run an engine with registered memory (a target for bench)");
  auto options = std::make_shared<ServeOptions>();
  add_engine_options(*command, options->engine);
  command->add_option("--mib", options->mib, "registered memory")
      ->capture_default_str()
      ->check(CLI::Range(std::size_t{1}, std::size_t{1} << 20U));
  command->callback([options, &exit_code] { exit_code = serve(*options); });
}

}  // namespace kvmend::cli
