// Which handler answers which method and path.
#pragma once

#include <string>
#include <vector>

#include "http/message.h"

namespace kvmend::http {

/// An exact-match routing table. Fill it, then give it to one server; not thread-safe while filled,
/// read-only afterwards.
class Router {
 public:
  /// `HEAD` is answered by the `GET` handler without its body.
  Router& add(Method method, std::string path, Handler handler);

  /// Finds and runs the handler. No match: 404; another method: 405 with `Allow`; an exception out
  /// of the handler: 500 with its text in the log, never to the caller.
  [[nodiscard]] Response dispatch(const Request& request) const;

 private:
  struct Route {
    Method method;
    std::string path;
    Handler handler;
  };
  std::vector<Route> routes_;
};

}  // namespace kvmend::http
