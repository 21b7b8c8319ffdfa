// Pure parsing of URLs and request targets.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "http/message.h"
#include "kvmend/status.h"

namespace kvmend::http {

/// What stands behind the method in a request line.
struct Target {
  std::string path;
  std::vector<Field> query;
};

/// Parses "/route?a=1&b=x%20y". Percent escapes are decoded ('+' is a blank in the query); control
/// characters, broken escapes and more than `limits::kMaxQueryParameters` are refused.
/// Errors: `kProtocolError` (peer).
[[nodiscard]] Result<Target> parse_target(std::string_view text);

struct Url {
  std::string host;  ///< without brackets; numeric or a name
  std::uint16_t port = 80;
  std::string target = "/";

  /// "host:port" as in a Host header: IPv6 in brackets.
  [[nodiscard]] std::string authority() const;
};

/// Parses "http://host[:port][/target]"; an IPv6 host needs brackets. Errors: `kInvalidArgument`
/// (caller), naming the text; `https` is refused.
[[nodiscard]] Result<Url> parse_url(std::string_view text);

/// The base URL for what users write as a server's address: "host:port", "[::1]:8998", a bare "::1"
/// (with `default_port`), or a whole "http://..." URL; a wildcard host ("0.0.0.0", "::") becomes
/// the loopback of its family. No slash at the end. Errors: as `parse_url`.
[[nodiscard]] Result<std::string> base_url(std::string_view address, std::uint16_t default_port);

}  // namespace kvmend::http
