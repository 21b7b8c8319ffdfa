// Checks of our own invariants. They stay on in release builds: a broken invariant must stop the
// process before it corrupts somebody's pages. Never use them on input from outside.
#pragma once

#include <string_view>

namespace kvmend::internal {
[[noreturn]] void check_failed(std::string_view expression, std::string_view file, int line,
                               std::string_view message);
}  // namespace kvmend::internal

#define KVM_CHECK(condition, ...)                                      \
  do {                                                                 \
    if (!(condition)) [[unlikely]]                                     \
      ::kvmend::internal::check_failed(#condition, __FILE__, __LINE__, \
                                       std::string_view{__VA_ARGS__}); \
  } while (false)
