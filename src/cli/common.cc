#include "cli/common.h"

#include <fmt/format.h>
#include <signal.h>

#include <array>
#include <cstdio>

namespace kvmend::cli {
namespace {

sigset_t stop_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}

}  // namespace

void add_engine_options(CLI::App& app, EngineOptions& options) {
  app.add_option("--host", options.host, "numeric address to listen at")->capture_default_str();
  app.add_option("--port", options.port, "port to listen at; 0: any free one")
      ->capture_default_str();
  app.add_option("--advertise", options.advertise, "address that peers use instead of --host");
  app.add_flag(
      "--insecure", options.insecure,
      "allow an address beyond loopback, although peers don't authenticate each other yet");
  app.add_option("--lanes", options.tcp.data_lanes, "tcp connections for data per session")
      ->capture_default_str();
  app.add_option("--congestion", options.tcp.congestion,
                 "TCP congestion control; empty: cubic on loopback, else the system's");
  app.add_option("--admin", options.admin_listen,
                 "serve /metrics, /healthz, /sessions and a page here, e.g. 127.0.0.1:9400");
}

int complain(const Status& status) {
  fmt::print(stderr, "kvmend: {}\n", status.to_string());
  return 1;
}

void hold_signals() {
  const sigset_t set = stop_signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

void wait_for_signal() {
  const sigset_t set = stop_signals();
  int number = 0;
  sigwait(&set, &number);
}

std::string human_bytes(double bytes) {
  constexpr std::array kUnits{"B", "KB", "MB", "GB", "TB", "PB"};
  std::size_t unit = 0;
  while (bytes >= 1000 && unit + 1 < kUnits.size()) {
    bytes /= 1000;
    ++unit;
  }
  return fmt::format("{:.{}f} {}", bytes, unit == 0 ? 0 : 2, kUnits[unit]);
}

}  // namespace kvmend::cli
