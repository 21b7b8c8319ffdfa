#include <algorithm>
#include <array>

#include "kvmend/kv.h"

namespace kvmend {

std::string_view kv_status_name(KvStatus status) {
  static constexpr std::array<std::string_view, 5> kNames = {
      "failed", "bootstrapping", "waiting_for_input", "transferring", "success"};
  const auto at = static_cast<std::size_t>(status);
  return at < kNames.size() ? kNames[at] : "unknown";
}

std::string_view kv_pool_name(KvPool pool) {
  static constexpr std::array<std::string_view, 16> kNames = {
      "kv",       "aux",        "mamba",       "qsa_pending",     "qsa_compressed",
      "swa",      "dsa",        "dsa_tail",    "minimax_index_k", "minimax_dense_kv",
      "swa_ring", "c128_state", "request_row", "block_scale",     "block_scale_swa",
      "kv_device"};
  const auto at = static_cast<std::size_t>(pool);
  return at < kNames.size() ? kNames[at] : "unknown";
}

std::string_view kv_share_name(KvShare share) {
  static constexpr std::array<std::string_view, 4> kNames = {"leader", "layers", "ranges",
                                                             "interleaved"};
  const auto at = static_cast<std::size_t>(share);
  return at < kNames.size() ? kNames[at] : "unknown";
}

KvStatus combine_ranks(std::span<const KvStatus> ranks) {
  const auto least = std::ranges::min_element(ranks);
  return least == ranks.end() ? KvStatus::kBootstrapping : *least;
}

}  // namespace kvmend
