#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace kvmend::internal {

void check_failed(std::string_view expression, std::string_view file, int line,
                  std::string_view message) {
  std::fprintf(stderr, "kvmend: invariant broken: %.*s at %.*s:%d %.*s\n",
               static_cast<int>(expression.size()), expression.data(),
               static_cast<int>(file.size()), file.data(), line, static_cast<int>(message.size()),
               message.data());
  std::fflush(stderr);
  std::abort();
}

}  // namespace kvmend::internal
