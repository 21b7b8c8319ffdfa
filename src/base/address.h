// A network address as users write it: "10.0.0.2:7001", "[::1]:7001".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kvmend/status.h"

namespace kvmend {

/// A numeric IP host and a port. The text form is the session id: IPv6 in brackets.
struct Address {
  std::string host;  ///< numeric IPv4 or IPv6, without brackets
  std::uint16_t port = 0;

  [[nodiscard]] bool is_ipv6() const { return host.find(':') != std::string::npos; }
  [[nodiscard]] bool is_loopback() const;
  /// "host:port" or "[host]:port".
  [[nodiscard]] std::string to_string() const;
  friend auto operator<=>(const Address&, const Address&) = default;
};

/// Parses "host:port", "[v6]:port" and a bare "v6" literal followed by the port of `default_port`
/// ("::1" alone needs one). "localhost" means 127.0.0.1. Errors: `kInvalidArgument`, naming the
/// text.
[[nodiscard]] Result<Address> parse_address(std::string_view text, int default_port = -1);

}  // namespace kvmend
