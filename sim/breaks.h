// The deliberate faults: which scenario shows each best.
#pragma once

#include <optional>
#include <span>
#include <string_view>

namespace kvmend::sim {

struct Break {
  std::string_view name;
  std::string_view scenario;  ///< where it shows most often
  std::string_view about;
};

[[nodiscard]] std::span<const Break> breaks();

/// Breaks the code that this thread runs, while it lives. "none" breaks nothing; false: no such
/// name.
class Broken {
 public:
  explicit Broken(std::string_view name);
  ~Broken();
  Broken(const Broken&) = delete;
  Broken& operator=(const Broken&) = delete;
};
[[nodiscard]] bool is_break(std::string_view name);

}  // namespace kvmend::sim
