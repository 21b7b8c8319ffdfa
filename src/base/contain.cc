#include "base/contain.h"

#include <spdlog/spdlog.h>

#include <atomic>
#include <bit>

namespace kvmend {
namespace {

std::atomic<std::uint64_t> g_contained{0};

}  // namespace

std::uint64_t contained_exceptions() {
  return g_contained.load(std::memory_order_relaxed);
}

void internal::note_contained(std::string_view what, const char* error) noexcept {
  const std::uint64_t count = g_contained.fetch_add(1, std::memory_order_relaxed) + 1;
  if (!std::has_single_bit(count)) return;
  try {
    spdlog::error("{} failed: {} ({} such failures so far)", what, error, count);
  } catch (...) {  // NOLINT(bugprone-empty-catch): no memory to say so, the counter does
  }
}

}  // namespace kvmend
