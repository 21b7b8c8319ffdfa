#include "base/address.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <array>
#include <charconv>

namespace kvmend {
namespace {

constexpr std::size_t kMaxAddressText = 128;

/// The one way to write a numeric IP address (`0:0::1` is `::1`), so that equal addresses are equal
/// text; empty if it isn't one.
std::string canonical_ip(const std::string& host) {
  if (host.find('\0') != std::string::npos) return {};  // inet_pton would stop there
  std::array<unsigned char, sizeof(in6_addr)> buffer{};
  std::array<char, INET6_ADDRSTRLEN> text{};
  for (const int family : {AF_INET, AF_INET6}) {
    if (inet_pton(family, host.c_str(), buffer.data()) == 1)
      return inet_ntop(family, buffer.data(), text.data(), text.size());
  }
  return {};
}

std::unexpected<Status> bad(std::string_view text, std::string_view why) {
  return fail(Code::kInvalidArgument, Origin::kCaller,
              fmt::format("address '{}': {} (write 10.0.0.2:7001 or [::1]:7001)",
                          text.substr(0, kMaxAddressText), why));
}

}  // namespace

bool Address::is_loopback() const {
  return host == "::1" || host.starts_with("127.");
}

std::string Address::to_string() const {
  return is_ipv6() ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

Result<Address> parse_address(std::string_view text, int default_port) {
  if (text.empty()) return bad(text, "is empty");
  if (text.size() > kMaxAddressText) return bad(text, "is too long");
  std::string_view host = text;
  std::string_view port;
  if (text.front() == '[') {
    const auto close = text.find(']');
    if (close == std::string_view::npos) return bad(text, "has no closing bracket");
    host = text.substr(1, close - 1);
    const std::string_view rest = text.substr(close + 1);
    if (!rest.empty() && rest.front() != ':') return bad(text, "has text after the bracket");
    if (!rest.empty()) port = rest.substr(1);
    if (rest == ":") return bad(text, "has an empty port");
  } else if (const auto colon = text.find(':');
             colon != std::string_view::npos &&
             text.find(':', colon + 1) == std::string_view::npos) {
    host = text.substr(0, colon);
    port = text.substr(colon + 1);
    if (port.empty()) return bad(text, "has an empty port");
  }
  Address address;
  address.host = canonical_ip(host == "localhost" ? "127.0.0.1" : std::string(host));
  if (address.host.empty()) return bad(text, "the host isn't a numeric IP address");
  if (port.empty()) {
    if (default_port < 0) return bad(text, "has no port");
    address.port = static_cast<std::uint16_t>(default_port);
    return address;
  }
  unsigned value = 0;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), value);
  if (error != std::errc{} || end != port.data() + port.size() || value > 65535)
    return bad(text, "the port isn't a number from 0 to 65535");
  address.port = static_cast<std::uint16_t>(value);
  return address;
}

}  // namespace kvmend
