// kvmend status: an engine's sessions, as its admin server tells them.
#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/common.h"
#include "http/client.h"

namespace kvmend::cli {
namespace {

using nlohmann::json;

void print_session(const json& s) {
  fmt::print("{:<24} {:<10} {:>10} {:>8} {:>8} {:>8} {:>10} {:>10.3f} {:>10.3f}\n",
             s.value("session_id", ""), s.value("state", ""),
             human_bytes(s.value("bytes_written", 0.0)), s.value("transfers_ok", std::uint64_t{0}),
             s.value("transfers_failed", std::uint64_t{0}), s.value("retries", std::uint64_t{0}),
             s.value("recoveries", std::uint64_t{0}), s.value("last_detect_seconds", 0.0),
             s.value("last_recover_seconds", 0.0));
  if (s.value("state", "") != "healthy" && !s.value("last_error", "").empty())
    fmt::print("    {}\n", s.value("last_error", ""));
  if (const auto waiting = s.value("pair_parked", std::uint64_t{0}); waiting > 0)
    fmt::print("    {} transfers wait for {}, of the same pair\n", waiting,
               s.value("pair_waits_for", ""));
}

int status(const std::string& url) {
  const auto response =
      http::request(http::Method::kGet, url + "/sessions", {}, std::chrono::seconds(5));
  if (!response) return complain(response.error());
  const json all = json::parse(response->body, nullptr, false);
  if (response->status != 200 || all.is_discarded() || !all.contains("sessions"))
    return complain(
        {Code::kProtocolError, Origin::kPeer,
         fmt::format("{} isn't a kvmend admin server (HTTP {})", url, response->status)});
  fmt::print("{:<24} {:<10} {:>10} {:>8} {:>8} {:>8} {:>10} {:>10} {:>10}\n", "session", "state",
             "written", "ok", "failed", "retries", "recovered", "detect s", "recover s");
  for (const json& session : all["sessions"]) print_session(session);
  return 0;
}

}  // namespace

void add_status(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("status", "show the sessions of a running engine");
  auto url = std::make_shared<std::string>();
  command->add_option("url", *url, "its admin server, e.g. http://127.0.0.1:9400")->required();
  command->callback([url, &exit_code] { exit_code = status(*url); });
}

}  // namespace kvmend::cli
