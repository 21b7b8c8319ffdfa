// Private to src/http: a server's counts, written by its thread, read by any.
#pragma once

#include <atomic>
#include <cstdint>

namespace kvmend::http {

struct Counters {
  std::atomic<std::uint64_t> accepted{0};
  std::atomic<std::uint64_t> requests{0};
  std::atomic<std::uint64_t> malformed{0};
  std::atomic<std::uint64_t> timed_out{0};
  std::atomic<std::uint64_t> shed{0};
  std::atomic<std::uint64_t> open{0};
};

}  // namespace kvmend::http
