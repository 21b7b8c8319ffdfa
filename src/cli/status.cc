// kvmend status: an engine's sessions, as its admin server tells them.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/common.h"
#include "http/client.h"
#include "wire/text.h"

namespace kvmend::cli {
namespace {

using nlohmann::json;

// Whoever answers there may send anything: a field of another type counts as absent, and text is
// made fit for a terminal.
std::string text_of(const json& session, const char* key) {
  constexpr std::size_t kMaxBytes = 512;
  const auto at = session.find(key);
  if (at == session.end() || !at->is_string()) return "?";
  return wire::clean_text(at->get_ref<const std::string&>(), kMaxBytes);
}

double number_of(const json& session, const char* key) {
  const auto at = session.find(key);
  return at != session.end() && at->is_number() ? at->get<double>() : 0.0;
}

void print_session(const json& s) {
  const std::string state = text_of(s, "state");
  print("{:<24} {:<10} {:>10} {:>8.0f} {:>8.0f} {:>8.0f} {:>10.0f} {:>10.3f} {:>10.3f}\n",
        text_of(s, "session_id"), state, human_bytes(number_of(s, "bytes_written")),
        number_of(s, "transfers_ok"), number_of(s, "transfers_failed"), number_of(s, "retries"),
        number_of(s, "recoveries"), number_of(s, "last_detect_seconds"),
        number_of(s, "last_recover_seconds"));
  const std::string error = text_of(s, "last_error");
  if (state != "healthy" && !error.empty() && error != "?") print("    {}\n", error);
  if (const double waiting = number_of(s, "pair_parked"); waiting > 0)
    print("    {:.0f} transfers wait for {}, of the same pair\n", waiting,
          text_of(s, "pair_waits_for"));
}

bool lists_sessions(const json& all) {
  if (!all.is_object() || !all.contains("sessions") || !all["sessions"].is_array()) return false;
  return std::ranges::all_of(all["sessions"], [](const json& s) { return s.is_object(); });
}

int status(const std::string& url) {
  const auto response =
      http::request(http::Method::kGet, url + "/sessions", {}, std::chrono::seconds(5));
  if (!response) return complain(response.error());
  const json all = json::parse(response->body, nullptr, false);
  if (response->status != 200 || !lists_sessions(all))
    return complain(
        {Code::kProtocolError, Origin::kPeer,
         fmt::format("{} isn't a kvmend admin server (HTTP {})", url, response->status)});
  print("{:<24} {:<10} {:>10} {:>8} {:>8} {:>8} {:>10} {:>10} {:>10}\n", "session", "state",
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
