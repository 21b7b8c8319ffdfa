// Pieces that the commands share.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "kvmend/options.h"
#include "kvmend/status.h"

namespace kvmend::cli {

/// The options that every command with an engine takes.
void add_engine_options(CLI::App& app, EngineOptions& options);

// A full disk, a closed descriptor or a reader that has gone is no reason to die: what a command
// prints may fail, and nothing throws. Standard output is the result: `finish` turns its failure
// into an exit code. Standard error is for people: what it doesn't take is dropped.

/// Once, first of all: takes the places of closed standard descriptors, so that no socket gets
/// their numbers, and makes a vanished reader an error instead of a signal.
void prepare_output();
void write_out(std::string_view text);
void write_error(std::string_view text);
template <class... Args>
void print(fmt::format_string<Args...> format, Args&&... args) {
  write_out(fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void notice(fmt::format_string<Args...> format, Args&&... args) {
  write_error(fmt::format(format, std::forward<Args>(args)...));
}
/// `exit_code`, or 1 when it is 0 and standard output didn't take everything. Once, last of all.
int finish(int exit_code);

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
