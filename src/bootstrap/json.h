// Private to src/bootstrap: reading JSON that came from outside, with limits and readable errors.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "kvmend/status.h"

namespace kvmend::bootstrap {

using Json = nlohmann::json;

/// Whether `text` opens at most `max_depth` objects and arrays within each other. Checked before
/// parsing: building and destroying a deep value recurses.
[[nodiscard]] bool json_depth_within(std::string_view text, std::size_t max_depth);

/// Parses a JSON object within the limits. Errors: `kInvalidArgument` (caller).
[[nodiscard]] Result<Json> parse_object(std::string_view text);

/// Reads members of one object and remembers the first thing that is wrong, so that a reader is a
/// list of members followed by one look at `status()`.
class ObjectReader {
 public:
  explicit ObjectReader(const Json& object) : object_(object) {}

  /// An integer or, as Python's `int()` takes it, a string of one; within [low, high].
  std::int64_t integer(const char* name, std::int64_t low, std::int64_t high);
  std::optional<std::int64_t> optional_integer(const char* name, std::int64_t low,
                                               std::int64_t high);
  /// A string without control characters of at most `limits::kMaxTextBytes`.
  std::string text(const char* name);
  std::optional<std::string> optional_text(const char* name);  ///< absent and null: nothing
  bool boolean(const char* name, bool absent);
  /// A non-negative 64-bit number written as a string of hexadecimal digits; absent: 0.
  std::uint64_t hex(const char* name);
  /// Any value, as its text with sorted keys; absent and null: empty.
  std::string any(const char* name, std::size_t max_bytes);

  [[nodiscard]] const Status& status() const { return status_; }

 private:
  const Json* find(const char* name) const;
  void refuse(const char* name, std::string_view why);

  const Json& object_;
  Status status_;
};

/// The integer of a JSON value, or of a string of one.
[[nodiscard]] std::optional<std::int64_t> to_integer(const Json& value);

}  // namespace kvmend::bootstrap
