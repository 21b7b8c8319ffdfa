#include "http/router.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <exception>
#include <string_view>

namespace kvmend::http {
namespace {

Response run(const Handler& handler, const Request& request) {
  std::string_view what = "unknown exception";
  try {
    return handler(request);
  } catch (const std::exception& error) {
    what = error.what();
    spdlog::error("http: {} {} failed: {}", method_name(request.method), request.path, what);
  } catch (...) {
    spdlog::error("http: {} {} failed: {}", method_name(request.method), request.path, what);
  }
  return text_response(500, "Internal error; the server's log has the reason.\n");
}

}  // namespace

Router& Router::add(Method method, std::string path, Handler handler) {
  routes_.push_back({method, std::move(path), std::move(handler)});
  return *this;
}

Response Router::dispatch(const Request& request) const {
  const Method wanted = request.method == Method::kHead ? Method::kGet : request.method;
  std::string allow;
  for (const Route& route : routes_) {
    if (route.path != request.path) continue;
    if (route.method == wanted) return run(route.handler, request);
    allow += fmt::format("{}{}", allow.empty() ? "" : ", ", method_name(route.method));
  }
  if (allow.empty()) return text_response(404, "Not found\n");
  Response response = text_response(405, "Method not allowed\n");
  response.headers.push_back({"Allow", allow});
  return response;
}

}  // namespace kvmend::http
