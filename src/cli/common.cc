#include "cli/common.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <iostream>
#include <system_error>

namespace kvmend::cli {
namespace {

int g_output_errno = 0;  // the main thread's

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

void prepare_output() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(fd, F_GETFD) < 0 && errno == EBADF)
      static_cast<void>(::open("/dev/null", O_RDWR));  // gets the lowest free number: this one
  ::signal(SIGPIPE, SIG_IGN);
}

void write_out(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
    g_output_errno = errno;
}

void write_error(std::string_view text) {
  static_cast<void>(std::fwrite(text.data(), 1, text.size(), stderr));
}

int finish(int exit_code) {
  errno = 0;
  if (!std::cout.flush()) g_output_errno = errno != 0 ? errno : EIO;  // CLI11's help
  if (g_output_errno == 0) return exit_code;
  notice("kvmend: writing to standard output failed: {}\n",
         std::generic_category().message(g_output_errno));
  return exit_code != 0 ? exit_code : 1;
}

int complain(const Status& status) {
  notice("kvmend: {}\n", status.to_string());
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
