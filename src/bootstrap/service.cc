#include "bootstrap/service.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <array>
#include <charconv>
#include <optional>
#include <utility>

#include "bootstrap/codec.h"
#include "bootstrap/http_status.h"
#include "bootstrap/memory_store.h"

namespace kvmend::bootstrap {
namespace {

http::Response refusal(const Status& status) {
  return http::text_response(http_status(status.code()), status.detail());
}

http::Response ok() {
  return http::text_response(200, "OK");
}

struct RouteQuery {
  RankKey key;
  [[nodiscard]] bool asks_for_topology() const {
    return key == RankKey{.dp = -1, .cp = -1, .tp = -1, .pp = -1};
  }
};

// SGLang answers 400 with this text when one of the four is absent or empty.
Result<RouteQuery> parse_route_query(const http::Request& request) {
  RouteQuery query;
  const std::array<std::pair<const char*, std::int64_t*>, 4> parts{{
      {"prefill_dp_rank", &query.key.dp},
      {"prefill_cp_rank", &query.key.cp},
      {"target_tp_rank", &query.key.tp},
      {"target_pp_rank", &query.key.pp},
  }};
  for (const auto& [name, value] : parts) {
    const std::string* text = request.query_value(name);
    if (text == nullptr || text->empty())
      return fail(Code::kInvalidArgument, Origin::kCaller, "Missing inputs for bootstrap server.");
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), *value);
    if (error != std::errc{} || end != text->data() + text->size())
      return fail(Code::kInvalidArgument, Origin::kCaller, fmt::format("{} isn't a number", name));
  }
  return query;
}

Asker asker_of(const http::Request& request) {
  const auto value = [&](std::string_view name) {
    const std::string* text = request.query_value(name);
    return text == nullptr ? std::string() : text->substr(0, limits::kMaxTextBytes);
  };
  return {.backend = value("backend"), .version = value("kvmend_version")};
}

}  // namespace

bool equal_in_constant_time(std::string_view given, std::string_view expected) {
  volatile unsigned difference = given.size() == expected.size() ? 0U : 1U;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const char other = expected.empty() ? '\0' : expected[i % expected.size()];
    difference = difference | static_cast<unsigned>(static_cast<unsigned char>(given[i] ^ other));
  }
  return difference == 0;
}

Server::Service::Service(const ServerOptions& options, const env::Clock& clock,
                         std::unique_ptr<Store> store)
    : clock_(clock),
      shared_key_(options.shared_key),
      store_(store ? std::move(store) : std::make_unique<MemoryStore>()),
      registry_(*store_, options.room_lifetime) {}

http::Router Server::Service::router() {
  http::Router router;
  router.add(http::Method::kGet, "/health", [](const Request&) { return ok(); })
      .add(http::Method::kPut, "/route", [this](const Request& r) { return put_route(r); })
      .add(http::Method::kGet, "/route", [this](const Request& r) { return get_route(r); })
      .add(http::Method::kPost, "/register_dp_rank",
           [this](const Request& r) { return register_room(r); })
      .add(http::Method::kPost, "/query_dp_ranks",
           [this](const Request& r) { return query_rooms(r); });
  return router;
}

Status Server::Service::authorize(const Request& request) {
  if (shared_key_.empty()) return Status::ok();
  constexpr std::string_view kScheme = "Bearer ";
  const std::string* header = request.header("Authorization");
  const std::string_view given = header == nullptr ? std::string_view() : std::string_view(*header);
  if (given.starts_with(kScheme) &&
      equal_in_constant_time(given.substr(kScheme.size()), shared_key_)) {
    return Status::ok();
  }
  const MutexLock lock(mutex_);
  ++unauthorized_;
  return {Code::kAuthFailed, Origin::kPeer, "This registry's shared key is missing or wrong."};
}

http::Response Server::Service::put_route(const Request& request) {
  if (const Status status = authorize(request); !status.is_ok()) return refusal(status);
  const auto registration = parse_registration(request.body);
  if (!registration) return refusal(registration.error());
  Status status;
  RegistryStats after;
  {
    const MutexLock lock(mutex_);
    status = registry_.register_rank(*registration, clock_.now());
    after = registry_.stats();
  }
  if (!status.is_ok()) {
    spdlog::debug("bootstrap: refused {}: {}", registration->key.to_string(), status.detail());
    return refusal(status);
  }
  spdlog::debug("bootstrap: {} is at {}:{} ({}/{} registered)", registration->key.to_string(),
                registration->rank.rank_ip, registration->rank.rank_port, after.ranks,
                registration->topology.expected_ranks());
  return ok();
}

http::Response Server::Service::get_route(const Request& request) const {
  const auto query = parse_route_query(request);
  if (!query) return refusal(query.error());
  const Asker asker = asker_of(request);
  const bool extended = !asker.backend.empty();
  const MutexLock lock(mutex_);
  if (query->asks_for_topology()) {
    const auto answer = registry_.topology(asker);
    return answer ? http::json_response(200, encode_topology(*answer, extended))
                  : refusal(answer.error());
  }
  const auto answer = registry_.rank(query->key, asker);
  return answer ? http::json_response(200, encode_rank(*answer, extended))
                : refusal(answer.error());
}

http::Response Server::Service::register_room(const Request& request) {
  if (const Status status = authorize(request); !status.is_ok()) return refusal(status);
  const auto room = parse_room(request.body);
  if (!room) return refusal(room.error());
  const MutexLock lock(mutex_);
  registry_.register_room(*room, clock_.now());
  return ok();
}

http::Response Server::Service::query_rooms(const Request& request) const {
  const auto rooms = parse_room_query(request.body);
  if (!rooms) return refusal(rooms.error());
  const MutexLock lock(mutex_);
  return http::json_response(200, encode_room_ranks(registry_.rooms(*rooms, clock_.now())));
}

void Server::Service::expire() {
  const MutexLock lock(mutex_);
  registry_.expire(clock_.now());
}

ServerStats Server::Service::stats() const {
  const MutexLock lock(mutex_);
  return {.registry = registry_.stats(), .http = {}, .unauthorized = unauthorized_};
}

}  // namespace kvmend::bootstrap
