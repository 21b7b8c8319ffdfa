// A small bounded HTTP/1.1 server: one thread, asynchronous, made for control traffic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "base/address.h"
#include "base/time.h"
#include "http/limits.h"
#include "http/message.h"
#include "http/router.h"
#include "kvmend/status.h"

namespace kvmend::http {

struct ServerOptions {
  Address listen{.host = "127.0.0.1", .port = 0};  ///< port 0: the system picks one
  bool allow_remote = false;  ///< without it an address that isn't loopback is refused
  std::size_t max_header_bytes = limits::kMaxHeaderBytes;
  std::size_t max_body_bytes = limits::kMaxBodyBytes;
  /// One more than this and the connection that has waited longest for a request is closed.
  std::size_t max_connections = limits::kMaxConnections;
  Duration idle_timeout = limits::kIdleTimeout;
  Duration read_timeout = limits::kReadTimeout;
  Duration write_timeout = limits::kWriteTimeout;
  Duration stop_grace = limits::kStopGrace;
  /// Called on the server's thread every `tick_interval`, for upkeep that mustn't wait for traffic.
  std::function<void()> on_tick;
  Duration tick_interval = std::chrono::seconds(1);
};

/// Counts since the start, for metrics and tests.
struct ServerStats {
  std::uint64_t accepted = 0;
  std::uint64_t requests = 0;
  std::uint64_t malformed = 0;  ///< unparsable, or over a limit; answered 4xx and closed
  std::uint64_t timed_out = 0;  ///< idle, or too slow in sending or reading
  std::uint64_t shed = 0;       ///< closed to make room for another connection
  std::uint64_t open = 0;       ///< now
};

/// Listens, parses, routes, answers. Header, body, time and number of connections are bounded; what
/// a peer sends ends at most its own connection.
///
/// Threading: `start`, `stop` and the destructor belong to the owner and must not be called from a
/// handler; the rest is for any thread. Handlers run one at a time on the server's own thread.
class Server {
 public:
  /// Binds, listens and starts the thread. Errors: `kPermissionDenied` (address isn't loopback),
  /// `kInvalidArgument` (no numeric address), `kUnavailable` (local: in use, no such address, ...).
  [[nodiscard]] static Result<std::unique_ptr<Server>> start(ServerOptions options, Router router);

  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  ~Server();

  /// Where it listens, with the real port.
  [[nodiscard]] const Address& address() const;
  /// "http://127.0.0.1:8998"
  [[nodiscard]] std::string url() const;
  [[nodiscard]] ServerStats stats() const;

  /// Refuses new connections, closes idle ones, lets answers under way finish within `stop_grace`
  /// and joins the thread. Idempotent.
  void stop();

 private:
  class Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvmend::http
