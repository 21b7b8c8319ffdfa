// The registry as prefill and decode ranks use it: blocking calls that ask again until a deadline.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/time.h"
#include "bootstrap/codec.h"
#include "bootstrap/limits.h"
#include "bootstrap/registry.h"
#include "bootstrap/retry.h"
#include "bootstrap/waiter.h"
#include "env/event_loop.h"
#include "http/client.h"
#include "kvmend/status.h"

namespace kvmend::bootstrap {

/// What a client needs of the world; tests bring their own. All pointers outlive the client.
struct ClientEnvironment {
  const env::Clock* clock = nullptr;
  Waiter* waiter = nullptr;
  std::uint64_t jitter_seed = 0;
  /// `http::request`, or what stands for it.
  std::function<Result<http::Response>(http::Method, const std::string& url, std::string body,
                                       Duration timeout, const http::ClientOptions&)>
      request = http::request;
};

struct ClientOptions {
  std::string registry;  ///< "host:port", "[::1]:8998", "::1" or a URL; default port 8998
  Asker self{.backend = "kvmend", .version = KVMEND_VERSION};
  std::string shared_key;
  RetryOptions retry;
};

/// Every call repeats what may succeed later (no connection, no answer, 5xx, "not complete yet")
/// with jittered backoff until `deadline`, at least once. All methods may be called from several
/// threads at once; each blocks its caller.
///
/// Errors of every call: `kDeadlineExceeded` (link), naming the registry and the last reason;
/// `kCancelled` (the waiter's owner); `kAuthFailed`; `kIncompatible` (another manager stands on the
/// other side; names both and the fix); `kProtocolError` (peer: no registry answers there).
class Client {
 public:
  /// Errors: `kInvalidArgument`, naming `options.registry`.
  [[nodiscard]] static Result<Client> create(ClientOptions options, ClientEnvironment environment);

  /// Also `kPeerRestarted` (another process took this rank's place), `kInvalidArgument`. Fills in
  /// backend and version. To be repeated within the lease, if one is asked for.
  Result<void> register_rank(Registration registration, Time deadline) const;
  /// Waits until the instance is complete.
  [[nodiscard]] Result<TopologyAnswer> topology(Time deadline) const;
  /// Also `kNotFound`.
  [[nodiscard]] Result<RankAnswer> rank(const RankKey& key, Time deadline) const;
  Result<void> register_room(const RoomRegistration& room, Time deadline) const;
  [[nodiscard]] Result<RoomRanks> rooms(const std::vector<RoomId>& rooms, Time deadline) const;
  Result<void> health(Time deadline) const;

  /// "http://127.0.0.1:8998"
  [[nodiscard]] const std::string& url() const { return url_; }

 private:
  Client(ClientOptions options, ClientEnvironment environment, std::string url);
  [[nodiscard]] Result<std::string> call(http::Method method, std::string_view target,
                                         const std::string& body, Time deadline) const;
  [[nodiscard]] Result<std::string> attempt(http::Method method, const std::string& url,
                                            const std::string& body, Time deadline) const;
  [[nodiscard]] std::string route(const RankKey& key) const;
  [[nodiscard]] std::unexpected<Status> unreadable(const Status& why) const;

  ClientOptions options_;
  ClientEnvironment environment_;
  std::string url_;
};

}  // namespace kvmend::bootstrap
