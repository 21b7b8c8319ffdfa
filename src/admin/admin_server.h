// What an operator looks at: /metrics, /healthz, /sessions, and a page.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/address.h"
#include "http/server.h"
#include "kvmend/engine.h"
#include "metrics/metrics.h"

namespace kvmend::admin {

/// Where the answers come from. Called on the server's thread; may block for a turn of the loop.
struct Sources {
  std::function<std::string()> metrics;  ///< Prometheus text
  std::function<std::vector<SessionInfo>()> sessions;
  std::function<EngineStats()> stats;
  std::function<metrics::Quarantined(KvRole)> quarantined;
  std::string session_id;   ///< of this engine
  std::string incarnation;  ///< in hexadecimal
};

/// Sessions and counters as JSON: {"engine": {...}, "quarantine": {"prefill": {...}, "decode":
/// {...}}, "sessions": [{...}]}. Pure.
[[nodiscard]] std::string to_json(const Sources& sources, const EngineStats& stats,
                                  const std::vector<SessionInfo>& sessions);
/// 200 "ok" while fewer than all sessions are blacklisted, else 503 naming them. Pure.
[[nodiscard]] http::Response health_response(const std::vector<SessionInfo>& sessions);
/// The page: self-contained HTML that asks /sessions every second.
[[nodiscard]] std::string page();

/// Starts the server. Errors as of http::Server::start. Stop it before what `sources` refer to.
[[nodiscard]] Result<std::unique_ptr<http::Server>> start_admin(const Address& listen,
                                                                bool allow_remote, Sources sources);

}  // namespace kvmend::admin
