#include "bootstrap/server.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "bootstrap/service.h"

namespace kvmend::bootstrap {

Server::Server(std::unique_ptr<Service> service, std::unique_ptr<http::Server> http)
    : service_(std::move(service)), http_(std::move(http)) {}

Server::~Server() {
  stop();
}

Result<std::unique_ptr<Server>> Server::start(const ServerOptions& options, const env::Clock& clock,
                                              std::unique_ptr<Store> store) {
  auto service = std::make_unique<Service>(options, clock, std::move(store));
  auto http = http::Server::start({.listen = options.listen,
                                   .allow_remote = options.allow_remote,
                                   .max_body_bytes = limits::kMaxRequestBytes,
                                   .on_tick = [raw = service.get()] { raw->expire(); },
                                   .tick_interval = limits::kUpkeepInterval},
                                  service->router());
  if (!http) return std::unexpected(http.error());
  spdlog::debug("bootstrap: registry listens on {}", (*http)->url());
  return std::unique_ptr<Server>(new Server(std::move(service), std::move(*http)));
}

const Address& Server::address() const {
  return http_->address();
}
std::string Server::url() const {
  return http_->url();
}
void Server::stop() {
  http_->stop();
}

ServerStats Server::stats() const {
  ServerStats stats = service_->stats();
  stats.http = http_->stats();
  return stats;
}

}  // namespace kvmend::bootstrap
