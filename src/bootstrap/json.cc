#include "bootstrap/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "bootstrap/limits.h"

namespace kvmend::bootstrap {
namespace {

std::unexpected<Status> bad(std::string why) {
  return fail(Code::kInvalidArgument, Origin::kCaller, std::move(why));
}

template <class Integer>
std::optional<Integer> parse_number(std::string_view text, int base) {
  Integer value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

bool json_depth_within(std::string_view text, std::size_t max_depth) {
  std::size_t depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > max_depth) return false;
    } else if ((c == '}' || c == ']') && depth > 0) {
      --depth;
    }
  }
  return true;
}

Result<Json> parse_object(std::string_view text) {
  if (text.size() > limits::kMaxRequestBytes)
    return bad(fmt::format("JSON of {} bytes exceeds {}", text.size(), limits::kMaxRequestBytes));
  if (!json_depth_within(text, limits::kMaxJsonDepth))
    return bad(fmt::format("JSON is nested deeper than {}", limits::kMaxJsonDepth));
  Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) return bad("not valid JSON");
  if (!value.is_object()) return bad("the JSON isn't an object");
  return value;
}

std::optional<std::int64_t> to_integer(const Json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<std::uint64_t>();
    if (number > static_cast<std::uint64_t>(INT64_MAX)) return std::nullopt;
    return static_cast<std::int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (value.is_string()) return parse_number<std::int64_t>(value.get_ref<const std::string&>(), 10);
  return std::nullopt;
}

const Json* ObjectReader::find(const char* name) const {
  const auto it = object_.find(name);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

void ObjectReader::refuse(const char* name, std::string_view why) {
  if (status_.is_ok())
    status_ = Status(Code::kInvalidArgument, Origin::kCaller, fmt::format("'{}' {}", name, why));
}

std::int64_t ObjectReader::integer(const char* name, std::int64_t low, std::int64_t high) {
  const auto value = optional_integer(name, low, high);
  if (!value) refuse(name, "is missing");
  return value.value_or(low);
}

std::optional<std::int64_t> ObjectReader::optional_integer(const char* name, std::int64_t low,
                                                           std::int64_t high) {
  const Json* member = find(name);
  if (member == nullptr) return std::nullopt;
  const auto value = to_integer(*member);
  if (!value) {
    refuse(name, "isn't an integer");
    return low;
  }
  if (*value < low || *value > high) {
    refuse(name, fmt::format("is {}, allowed is {} to {}", *value, low, high));
    return low;
  }
  return value;
}

std::string ObjectReader::text(const char* name) {
  auto value = optional_text(name);
  if (!value || value->empty()) refuse(name, "is missing");
  return value.value_or("");
}

std::optional<std::string> ObjectReader::optional_text(const char* name) {
  const Json* member = find(name);
  if (member == nullptr) return std::nullopt;
  if (!member->is_string()) {
    refuse(name, "isn't a string");
    return std::nullopt;
  }
  const auto& value = member->get_ref<const std::string&>();
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  if (value.size() > limits::kMaxTextBytes || std::ranges::any_of(value, is_control)) {
    refuse(name, fmt::format("is longer than {} bytes or has a control character",
                             limits::kMaxTextBytes));
    return std::nullopt;
  }
  return value;
}

bool ObjectReader::boolean(const char* name, bool absent) {
  const Json* member = find(name);
  if (member == nullptr) return absent;
  if (member->is_boolean()) return member->get<bool>();
  if (member->is_number_integer()) return to_integer(*member).value_or(1) != 0;
  refuse(name, "isn't true or false");
  return absent;
}

std::uint64_t ObjectReader::hex(const char* name) {
  const Json* member = find(name);
  if (member == nullptr) return 0;
  const auto value = member->is_string()
                         ? parse_number<std::uint64_t>(member->get_ref<const std::string&>(), 16)
                         : std::nullopt;
  if (!value) refuse(name, "isn't a string of hexadecimal digits");
  return value.value_or(0);
}

std::string ObjectReader::any(const char* name, std::size_t max_bytes) {
  const Json* member = find(name);
  if (member == nullptr) return {};
  std::string value = member->dump();
  if (value.size() <= max_bytes) return value;
  refuse(name, fmt::format("takes more than {} bytes", max_bytes));
  return {};
}

}  // namespace kvmend::bootstrap
