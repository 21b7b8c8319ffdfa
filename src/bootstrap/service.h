// Private to src/bootstrap: the routes as functions from request to answer. Pure but for the clock.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/thread_annotations.h"
#include "bootstrap/server.h"
#include "http/message.h"

namespace kvmend::bootstrap {

/// Whether `given` equals `expected`, in a time that depends on the length of `given` only.
[[nodiscard]] bool equal_in_constant_time(std::string_view given, std::string_view expected);

/// Any thread.
class Server::Service {
 public:
  Service(const ServerOptions& options, const env::Clock& clock, std::unique_ptr<Store> store);

  [[nodiscard]] http::Router router();
  [[nodiscard]] ServerStats stats() const;
  void expire();

 private:
  using Request = http::Request;
  using Response = http::Response;

  Response put_route(const Request& request);
  Response get_route(const Request& request) const;
  Response register_room(const Request& request);
  Response query_rooms(const Request& request) const;
  /// OK, or the 401.
  [[nodiscard]] Status authorize(const Request& request);

  const env::Clock& clock_;
  const std::string shared_key_;
  mutable Mutex mutex_;
  std::unique_ptr<Store> store_ KVM_GUARDED_BY(mutex_);
  Registry registry_ KVM_GUARDED_BY(mutex_);
  std::uint64_t unauthorized_ KVM_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvmend::bootstrap
