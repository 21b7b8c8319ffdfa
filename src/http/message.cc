#include "http/message.h"

#include <algorithm>
#include <array>

namespace kvmend::http {
namespace {

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

bool same_name(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, {}, lower, lower);
}

}  // namespace

std::string_view method_name(Method method) {
  constexpr std::array<std::string_view, 6> kNames{"GET", "HEAD", "PUT", "POST", "DELETE", "OTHER"};
  return kNames[static_cast<std::size_t>(method)];
}

const std::string* Request::query_value(std::string_view name) const {
  const auto it = std::ranges::find(query, name, &Field::name);
  return it == query.end() ? nullptr : &it->value;
}

const std::string* Request::header(std::string_view name) const {
  const auto it =
      std::ranges::find_if(headers, [&](const Field& f) { return same_name(f.name, name); });
  return it == headers.end() ? nullptr : &it->value;
}

}  // namespace kvmend::http
