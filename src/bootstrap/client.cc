#include "bootstrap/client.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/check.h"
#include "base/try.h"
#include "bootstrap/backend.h"
#include "bootstrap/http_status.h"
#include "http/url.h"

namespace kvmend::bootstrap {
namespace {

constexpr std::size_t kShownBytes = 500;  // of an answer's text, in an error

// splitmix64: the jitter of one call follows from the seed and the call's number.
std::uint64_t mix(std::uint64_t z) {
  z += 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27U)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31U);
}

// Whether the same request may succeed later. A garbled or cut answer may come from a registry that
// is just going down or coming up.
bool worth_repeating(const Status& status) {
  return is_retryable(status.code()) || status.code() == Code::kDeadlineExceeded;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  return text.substr(0, kShownBytes);
}

}  // namespace

Client::Client(ClientOptions options, ClientEnvironment environment, std::string url)
    : options_(std::move(options)), environment_(std::move(environment)), url_(std::move(url)) {
  KVM_CHECK(environment_.clock != nullptr && environment_.waiter != nullptr);
}

Result<Client> Client::create(ClientOptions options, ClientEnvironment environment) {
  KVM_ASSIGN_OR_RETURN(std::string url, http::base_url(options.registry, limits::kDefaultPort));
  return Client(std::move(options), std::move(environment), std::move(url));
}

Result<std::string> Client::attempt(http::Method method, const std::string& url,
                                    const std::string& body, Time deadline) const {
  const Duration left = deadline - environment_.clock->now();
  const Duration timeout =
      std::clamp(left, Duration(std::chrono::milliseconds(1)), options_.retry.attempt_timeout);
  KVM_ASSIGN_OR_RETURN(
      http::Response response,
      environment_.request(method, url, body, timeout, {.bearer_token = options_.shared_key}));
  const Code code = code_of_http_status(response.status);
  if (code == Code::kOk) return std::move(response.body);
  return fail(code, Origin::kPeer,
              fmt::format("{} {}: {} {}", http::method_name(method), url, response.status,
                          trimmed(response.body)));
}

Result<std::string> Client::call(http::Method method, std::string_view target,
                                 const std::string& body, Time deadline) const {
  const std::string url = url_ + std::string(target);
  const Time began = environment_.clock->now();
  std::uint64_t random =
      environment_.jitter_seed ^ static_cast<std::uint64_t>(began.time_since_epoch().count());
  for (std::uint32_t attempts = 1;; ++attempts) {
    auto result = attempt(method, url, body, deadline);
    if (result || !worth_repeating(result.error())) return result;
    random = mix(random);
    const Time now = environment_.clock->now();
    const Duration pause = retry_delay(options_.retry, attempts, random);
    if (deadline <= now || pause >= deadline - now) {
      return fail(Code::kDeadlineExceeded, Origin::kLink,
                  fmt::format("the bootstrap registry {} gave no usable answer in {:.1f} s and {} "
                              "attempts; the last: {}",
                              url_, to_seconds(now - began), attempts, result.error().detail()));
    }
    if (!environment_.waiter->wait(pause)) {
      return fail(Code::kCancelled, Origin::kCaller,
                  fmt::format("{} {}: cancelled", http::method_name(method), url));
    }
  }
}

std::string Client::route(const RankKey& key) const {
  return fmt::format(
      "/route?prefill_dp_rank={}&prefill_cp_rank={}&target_tp_rank={}&target_pp_rank={}&backend={}"
      "&kvmend_version={}",
      key.dp, key.cp, key.tp, key.pp, options_.self.backend, options_.self.version);
}

std::unexpected<Status> Client::unreadable(const Status& why) const {
  return fail(Code::kProtocolError, Origin::kPeer,
              fmt::format("{} doesn't answer like a bootstrap registry: {}", url_, why.detail()));
}

Result<void> Client::register_rank(Registration registration, Time deadline) const {
  registration.topology.backend = options_.self.backend;
  registration.topology.kvmend_version = options_.self.version;
  const auto answer =
      call(http::Method::kPut, "/route", encode_registration(registration), deadline);
  if (!answer) return std::unexpected(answer.error());
  return {};
}

Result<TopologyAnswer> Client::topology(Time deadline) const {
  KVM_ASSIGN_OR_RETURN(
      const std::string body,
      call(http::Method::kGet, route({.dp = -1, .cp = -1, .tp = -1, .pp = -1}), "", deadline));
  auto answer = parse_topology(body);
  if (!answer) return unreadable(answer.error());
  // SGLang's own registry can't compare, nor say who registered: its answer has no backend.
  KVM_RETURN_IF_ERROR(check_backends(answer->topology.backend, answer->topology.kvmend_version,
                                     options_.self.backend, options_.self.version));
  return answer;
}

Result<RankAnswer> Client::rank(const RankKey& key, Time deadline) const {
  KVM_ASSIGN_OR_RETURN(const std::string body, call(http::Method::kGet, route(key), "", deadline));
  auto answer = parse_rank(body);
  if (!answer) return unreadable(answer.error());
  return answer;
}

Result<void> Client::register_room(const RoomRegistration& room, Time deadline) const {
  const auto answer = call(http::Method::kPost, "/register_dp_rank", encode_room(room), deadline);
  if (!answer) return std::unexpected(answer.error());
  return {};
}

Result<RoomRanks> Client::rooms(const std::vector<RoomId>& rooms, Time deadline) const {
  KVM_ASSIGN_OR_RETURN(const std::string body, call(http::Method::kPost, "/query_dp_ranks",
                                                    encode_room_query(rooms), deadline));
  auto answer = parse_room_ranks(body);
  if (!answer) return unreadable(answer.error());
  return answer;
}

Result<void> Client::health(Time deadline) const {
  const auto answer = call(http::Method::kGet, "/health", "", deadline);
  if (!answer) return std::unexpected(answer.error());
  return {};
}

}  // namespace kvmend::bootstrap
