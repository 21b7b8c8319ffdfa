// Pieces that the commands share.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "kvmend/options.h"
#include "kvmend/status.h"

namespace kvmend::cli {

/// The options that every command with an engine takes.
void add_engine_options(CLI::App& app, EngineOptions& options);

/// Prints "kvmend: ..." to standard error; returns the exit code of a failure.
int complain(const Status& status);

/// Blocks until SIGINT or SIGTERM. Call `hold_signals` before any thread is started.
void hold_signals();
void wait_for_signal();

/// "1.5 GB", in powers of 1,000.
[[nodiscard]] std::string human_bytes(double bytes);

// One function per command; each adds itself to the program and runs inside CLI11's callback,
// setting the exit code.
void add_bench(CLI::App& app, int& exit_code);
void add_bootstrap(CLI::App& app, int& exit_code);
void add_probe(CLI::App& app, int& exit_code);
void add_serve(CLI::App& app, int& exit_code);
void add_status(CLI::App& app, int& exit_code);

}  // namespace kvmend::cli
