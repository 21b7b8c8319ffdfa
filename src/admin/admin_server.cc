#include "admin/admin_server.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace kvmend::admin {
namespace {

using nlohmann::json;

json to_value(const SessionInfo& session) {
  json history = json::array();
  for (const SessionTransition& t : session.history)
    history.push_back(
        {{"seconds_ago", t.seconds_ago}, {"from", t.from}, {"to", t.to}, {"cause", t.cause}});
  return {{"session_id", session.session_id},
          {"state", session.state},
          {"incarnation", fmt::format("{:016x}", session.incarnation.value)},
          {"epoch", session.epoch},
          {"lanes", session.lanes},
          {"transport", session.transport},
          {"queued_transfers", session.queued_transfers},
          {"pair_parked", session.pair_parked},
          {"pair_waits_for", session.pair_waits_for},
          {"outstanding_bytes", session.outstanding_bytes},
          {"bytes_written", session.bytes_written},
          {"bytes_read", session.bytes_read},
          {"transfers_ok", session.transfers_ok},
          {"transfers_failed", session.transfers_failed},
          {"retries", session.retries},
          {"recoveries", session.recoveries},
          {"last_detect_seconds", session.last_detect_seconds},
          {"last_recover_seconds", session.last_recover_seconds},
          {"last_error", session.last_error},
          {"history", std::move(history)}};
}

/// Pages of rooms that are over and wait for the proof that nobody touches them any more.
json quarantine_of(const Sources& sources) {
  json out = json::object();
  if (!sources.quarantined) return out;
  for (const auto& [name, role] :
       {std::pair{"prefill", KvRole::kPrefill}, std::pair{"decode", KvRole::kDecode}}) {
    const metrics::Quarantined now = sources.quarantined(role);
    out[name] = {{"rooms", now.rooms}, {"pages", now.pages}, {"full", now.full}};
  }
  return out;
}

bool is_blacklisted(const SessionInfo& session) {
  return session.state == "failed" || session.state == "probing";
}

}  // namespace

std::string to_json(const Sources& sources, const EngineStats& stats,
                    const std::vector<SessionInfo>& sessions) {
  json list = json::array();
  for (const SessionInfo& session : sessions) list.push_back(to_value(session));
  const json all{{"engine",
                  {{"session_id", sources.session_id},
                   {"incarnation", sources.incarnation},
                   {"bytes_sent", stats.bytes_sent},
                   {"bytes_received", stats.bytes_received},
                   {"bytes_discarded", stats.bytes_discarded},
                   {"frames_refused", stats.frames_refused},
                   {"protocol_errors", stats.protocol_errors},
                   {"contained_exceptions", stats.contained_exceptions},
                   {"transfers_ok", stats.transfers_ok},
                   {"transfers_failed", stats.transfers_failed},
                   {"retries", stats.retries},
                   {"recoveries", stats.recoveries},
                   {"probes_ok", stats.probes_ok},
                   {"probes_failed", stats.probes_failed},
                   {"regions", stats.regions},
                   {"registered_bytes", stats.registered_bytes},
                   {"inbound_lanes", stats.inbound_lanes},
                   {"grants", stats.grants}}},
                 {"quarantine", quarantine_of(sources)},
                 {"sessions", std::move(list)}};
  // Causes may quote a peer's text: what isn't UTF-8 is replaced, never thrown at the reader.
  return all.dump(-1, ' ', false, json::error_handler_t::replace);
}

http::Response health_response(const std::vector<SessionInfo>& sessions) {
  std::string names;
  std::size_t blacklisted = 0;
  for (const SessionInfo& session : sessions) {
    if (!is_blacklisted(session)) continue;
    ++blacklisted;
    if (blacklisted <= 20)
      names += fmt::format("{} {}: {}\n", session.session_id, session.state, session.last_error);
  }
  const bool bad = blacklisted > 0 && blacklisted == sessions.size();
  if (blacklisted == 0) return http::text_response(200, "ok\n");
  return http::text_response(
      bad ? 503 : 200, fmt::format("{}: {} of {} sessions are blacklisted\n{}",
                                   bad ? "failed" : "ok", blacklisted, sessions.size(), names));
}

Result<std::unique_ptr<http::Server>> start_admin(const Address& listen, bool allow_remote,
                                                  Sources sources) {
  http::Router router;
  const auto shared = std::make_shared<Sources>(std::move(sources));
  router.add(http::Method::kGet, "/metrics", [shared](const http::Request&) {
    http::Response response = http::text_response(200, shared->metrics());
    response.content_type = "text/plain; version=0.0.4; charset=utf-8";
    return response;
  });
  router.add(http::Method::kGet, "/healthz",
             [shared](const http::Request&) { return health_response(shared->sessions()); });
  router.add(http::Method::kGet, "/sessions", [shared](const http::Request&) {
    return http::json_response(200, to_json(*shared, shared->stats(), shared->sessions()));
  });
  router.add(http::Method::kGet, "/", [](const http::Request&) {
    http::Response response = http::text_response(200, page());
    response.content_type = "text/html; charset=utf-8";
    return response;
  });
  http::ServerOptions options;
  options.listen = listen;
  options.allow_remote = allow_remote;
  return http::Server::start(std::move(options), std::move(router));
}

}  // namespace kvmend::admin
