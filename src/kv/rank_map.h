// Who talks to whom: the prefill ranks that a decode rank takes its pages from. The rules are those
// of the reference (docs/kv-layouts.md). Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kvmend/kv_ranks.h"
#include "kvmend/status.h"

namespace kvmend::kv {

/// Source tensor ranks that serve a destination tensor rank: [first, first + count).
struct TensorServers {
  std::uint32_t first = 0;
  std::uint32_t count = 0;
  friend bool operator==(const TensorServers&, const TensorServers&) = default;
};

/// Nothing when neither size divides the other. `all`: every source rank serves (pages dealt out
/// among them; the sizes must be equal).
[[nodiscard]] std::optional<TensorServers> tensor_servers(std::uint32_t source_size,
                                                          std::uint32_t destination_rank,
                                                          std::uint32_t destination_size, bool all);

/// Whether pages are dealt out among tensor ranks (kInterleaved without context parallelism).
[[nodiscard]] inline bool shared_among_tensor_ranks(KvShare share, std::uint32_t cp_size) {
  return share == KvShare::kInterleaved && cp_size == 1;
}

/// Whether `source` is one of those that serve `destination`. Errors: kIncompatible, naming the
/// coordinates that don't meet.
[[nodiscard]] Status check_serves(const KvRank& source, KvShare share, const KvRank& destination);

}  // namespace kvmend::kv
