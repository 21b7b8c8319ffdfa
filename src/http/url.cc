#include "http/url.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/try.h"
#include "http/limits.h"

namespace kvmend::http {
namespace {

constexpr std::size_t kShownBytes = 200;  // of a bad text, in an error

bool is_control(char c) {
  return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::unexpected<Status> bad_target(std::string_view why) {
  return fail(Code::kProtocolError, Origin::kPeer, fmt::format("request target: {}", why));
}

std::unexpected<Status> bad_url(std::string_view text, std::string_view why) {
  return fail(Code::kInvalidArgument, Origin::kCaller,
              fmt::format("URL '{}': {} (write http://10.0.0.2:8998 or http://[::1]:8998)",
                          text.substr(0, kShownBytes), why));
}

Result<std::string> decode(std::string_view text, bool plus_is_blank) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == '%') {
      const bool complete = text.size() - i > 2;
      const int high = complete ? hex_digit(text[i + 1]) : -1;
      const int low = complete ? hex_digit(text[i + 2]) : -1;
      if (high < 0 || low < 0) return bad_target("broken percent escape");
      c = static_cast<char>(high * 16 + low);
      i += 2;
    } else if (c == '+' && plus_is_blank) {
      c = ' ';
    }
    if (is_control(c)) return bad_target("control character");
    out.push_back(c);
  }
  return out;
}

// "host", "host:port", "[v6]", "[v6]:port".
Result<Url> parse_authority(std::string_view whole, std::string_view text) {
  Url url;
  std::string_view port;
  if (text.starts_with('[')) {
    const auto close = text.find(']');
    if (close == std::string_view::npos) return bad_url(whole, "has no closing bracket");
    url.host = text.substr(1, close - 1);
    const auto rest = text.substr(close + 1);
    if (!rest.empty() && rest.front() != ':') return bad_url(whole, "has text after the bracket");
    if (rest == ":") return bad_url(whole, "has an empty port");
    if (!rest.empty()) port = rest.substr(1);
  } else {
    const auto colon = text.find(':');
    url.host = text.substr(0, colon);
    if (colon != std::string_view::npos) {
      port = text.substr(colon + 1);
      if (port.empty()) return bad_url(whole, "has an empty port");
      if (port.find(':') != std::string_view::npos) return bad_url(whole, "IPv6 needs brackets");
    }
  }
  const bool bracketed = text.starts_with('[');
  const auto allowed = [&](char c) {
    if (bracketed) return hex_digit(c) >= 0 || c == ':' || c == '.';
    return static_cast<unsigned char>(c) > ' ' &&
           std::string_view("@%[]\\\"<>").find(c) == std::string_view::npos;
  };
  if (url.host.empty() || url.host.size() > 255 || !std::ranges::all_of(url.host, allowed) ||
      bracketed != (url.host.find(':') != std::string::npos)) {
    return bad_url(whole, "has no valid host");
  }
  if (port.empty()) return url;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), url.port);
  if (error != std::errc{} || end != port.data() + port.size() || url.port == 0)
    return bad_url(whole, "the port isn't a number from 1 to 65535");
  return url;
}

}  // namespace

Result<Target> parse_target(std::string_view text) {
  if (text.size() > limits::kMaxTargetBytes) return bad_target("too long");
  if (!text.starts_with('/')) return bad_target("doesn't start with '/'");
  text = text.substr(0, text.find('#'));
  const auto mark = text.find('?');
  Target target;
  KVM_ASSIGN_OR_RETURN(target.path, decode(text.substr(0, mark), false));
  if (mark == std::string_view::npos) return target;
  std::string_view rest = text.substr(mark + 1);
  while (!rest.empty()) {
    const auto piece = rest.substr(0, rest.find('&'));
    rest.remove_prefix(std::min(piece.size() + 1, rest.size()));
    if (piece.empty()) continue;
    if (target.query.size() >= limits::kMaxQueryParameters)
      return bad_target("too many query parameters");
    const auto equals = piece.find('=');
    Field field;
    KVM_ASSIGN_OR_RETURN(field.name, decode(piece.substr(0, equals), true));
    if (equals != std::string_view::npos) {
      KVM_ASSIGN_OR_RETURN(field.value, decode(piece.substr(equals + 1), true));
    }
    target.query.push_back(std::move(field));
  }
  return target;
}

std::string Url::authority() const {
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port)
                                             : fmt::format("[{}]:{}", host, port);
}

Result<Url> parse_url(std::string_view text) {
  if (text.size() > limits::kMaxUrlBytes) return bad_url(text, "is too long");
  if (std::ranges::any_of(text, is_control)) return bad_url(text, "has a control character");
  if (text.starts_with("https://")) return bad_url(text, "https isn't supported");
  constexpr std::string_view kScheme = "http://";
  if (!text.starts_with(kScheme)) return bad_url(text, "doesn't start with http://");
  const auto rest = text.substr(kScheme.size());
  const auto end = rest.find_first_of("/?#");
  KVM_ASSIGN_OR_RETURN(Url url, parse_authority(text, rest.substr(0, end)));
  if (end != std::string_view::npos) {
    url.target = rest.substr(end, rest.find('#') - end);
    if (!url.target.starts_with('/')) url.target.insert(0, "/");
    if (url.target.find(' ') != std::string::npos) return bad_url(text, "has a blank");
  }
  return url;
}

Result<std::string> base_url(std::string_view address, std::uint16_t default_port) {
  std::string text(address);
  if (!text.starts_with("http://") && !text.starts_with("https://")) {
    const auto colons = std::ranges::count(text, ':');
    if (colons > 1 && !text.starts_with('[')) text = fmt::format("[{}]", text);
    const bool has_port =
        text.find(':', text.starts_with('[') ? text.find(']') : 0) != std::string::npos;
    text =
        has_port ? fmt::format("http://{}", text) : fmt::format("http://{}:{}", text, default_port);
  }
  KVM_ASSIGN_OR_RETURN(Url url, parse_url(text));
  if (url.host == "0.0.0.0") url.host = "127.0.0.1";
  if (url.host == "::") url.host = "::1";
  while (url.target.ends_with('/')) url.target.pop_back();
  return fmt::format("http://{}{}", url.authority(), url.target);
}

}  // namespace kvmend::http
