// The registry behind HTTP, with SGLang's routes and answers.
#pragma once

#include <memory>
#include <string>

#include "base/address.h"
#include "bootstrap/limits.h"
#include "bootstrap/registry.h"
#include "bootstrap/store.h"
#include "env/event_loop.h"
#include "http/server.h"
#include "kvmend/status.h"

namespace kvmend::bootstrap {

struct ServerOptions {
  Address listen{.host = "127.0.0.1", .port = limits::kDefaultPort};  ///< port 0: any free one
  bool allow_remote = false;  ///< without it only loopback addresses are taken
  /// If not empty, registering needs "Authorization: Bearer <key>"; SGLang's stock manager can't
  /// send that.
  std::string shared_key;
  Duration room_lifetime = limits::kRoomLifetime;
};

struct ServerStats {
  RegistryStats registry;
  http::ServerStats http;
  std::uint64_t unauthorized = 0;
};

/// PUT /route, GET /route, POST /register_dp_rank, POST /query_dp_ranks, GET /health.
/// Starts on construction with a thread of its own; all methods are for any thread, destruction
/// for the owner.
class Server {
 public:
  /// `clock` must outlive the server; `store` null: in memory. Errors: as `http::Server::start`.
  [[nodiscard]] static Result<std::unique_ptr<Server>> start(
      const ServerOptions& options, const env::Clock& clock,
      std::unique_ptr<Store> store = nullptr);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  [[nodiscard]] const Address& address() const;
  [[nodiscard]] std::string url() const;
  [[nodiscard]] ServerStats stats() const;
  /// Idempotent; the owner's thread.
  void stop();

 private:
  class Service;
  Server(std::unique_ptr<Service> service, std::unique_ptr<http::Server> http);
  std::unique_ptr<Service> service_;  // outlives http_, whose thread uses it
  std::unique_ptr<http::Server> http_;
};

}  // namespace kvmend::bootstrap
