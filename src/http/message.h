// Requests and answers as handlers and callers see them; plain values, no I/O.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace kvmend::http {

enum class Method : std::uint8_t { kGet, kHead, kPut, kPost, kDelete, kOther };

/// "GET", ...; "OTHER" for every method kvmend has no use for.
[[nodiscard]] std::string_view method_name(Method method);

struct Field {
  std::string name;
  std::string value;
  friend bool operator==(const Field&, const Field&) = default;
};

struct Request {
  Method method = Method::kGet;
  std::string path;          ///< decoded, starts with '/'
  std::vector<Field> query;  ///< decoded, in the order of the URL
  std::vector<Field> headers;
  std::string body;
  std::string peer;  ///< "127.0.0.1:4711"

  /// The first query parameter of that name, or null.
  [[nodiscard]] const std::string* query_value(std::string_view name) const;
  /// The first header of that name (case doesn't matter), or null.
  [[nodiscard]] const std::string* header(std::string_view name) const;
};

struct Response {
  int status = 200;
  std::string body;
  std::string content_type = "text/plain; charset=utf-8";
  std::vector<Field> headers;

  [[nodiscard]] bool is_success() const { return status >= 200 && status < 300; }
};

[[nodiscard]] inline Response text_response(int status, std::string body) {
  return {.status = status, .body = std::move(body)};
}
[[nodiscard]] inline Response json_response(int status, std::string body) {
  return {.status = status, .body = std::move(body), .content_type = "application/json"};
}

/// Answers one request. Runs on the server's thread and must not block; an exception becomes a 500.
using Handler = std::function<Response(const Request&)>;

}  // namespace kvmend::http
