#include "kv/coverage.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "kv/geometry.h"
#include "kv/layout.h"
#include "kv/page_runs.h"

namespace kvmend::kv {
namespace {

std::uint64_t bytes_of(const wire::KvCoverage& coverage, std::size_t buffer) {
  if (coverage.bytes.empty()) return 0;
  return coverage.bytes[coverage.bytes.size() == 1 ? 0 : buffer];
}

Status check_writer(const wire::KvCoverage& one, const KvComponent& component) {
  const std::size_t buffers = component.buffers.size();
  bool good = one.bytes.size() <= 1 || one.bytes.size() == buffers;
  for (std::size_t i = 0; good && i < buffers; ++i)
    good = bytes_of(one, i) <= component.buffers[i].item_len;
  if (good && !one.elided.empty()) good = one.elided.back() < buffers;
  if (good) return {};
  return {Code::kProtocolError, Origin::kPeer,
          fmt::format("a prefill rank's word on {} makes no sense", kv_pool_name(component.pool))};
}

}  // namespace

Coverage::Coverage(const KvLayout& layout, std::size_t index,
                   std::span<const wire::KvCoverage* const> writers)
    : page_tokens_(layout.page_tokens), dcp_rank_(layout.rank.dcp_rank) {
  const KvComponent& component = layout.components[index];
  const wire::KvCoverage* first = nullptr;  // that brings anything
  for (const wire::KvCoverage* one : writers) {
    check_ = check_writer(*one, component);
    if (!check_.is_ok()) return;
    const bool known = one->token_ranks == 1 || one->token_ranks == layout.rank.dcp_size;
    if (known && one->bytes.empty()) {
      token_ranks_ = std::max(token_ranks_, one->token_ranks);  // page numbers are counted by it
      continue;
    }
    if (first == nullptr) first = one;
    if (!known || one->divisor != first->divisor || one->token_ranks != first->token_ranks) {
      check_ = {
          Code::kIncompatible, Origin::kPeer,
          fmt::format("prefill ranks share {} pages among {} and {} ranks, their tokens among "
                      "{} and {} of {}",
                      kv_pool_name(component.pool), first->divisor, one->divisor,
                      first->token_ranks, one->token_ranks, layout.rank.dcp_size)};
      return;
    }
  }
  if (first != nullptr) {
    divisor_ = first->divisor;
    token_ranks_ = first->token_ranks;
  }
  const wire::KvLayout described = describe(KvLayout{.page_tokens = layout.page_tokens,
                                                     .kv_heads = layout.kv_heads,
                                                     .element_order = layout.element_order,
                                                     .rank = layout.rank,
                                                     .components = {component},
                                                     .total_kv_heads = layout.total_kv_heads},
                                            {});
  for (std::size_t i = 0; i < component.buffers.size() && check_.is_ok(); ++i) {
    std::uint64_t covered = 0;
    bool elided = false;
    for (const wire::KvCoverage* one : writers) {
      covered += bytes_of(*one, i);
      elided = elided || std::ranges::binary_search(one->elided, static_cast<std::uint32_t>(i));
    }
    add_buffer(component, i, covered, elided);
    const bool dealt =
        token_ranks_ > 1 && shape_of(described, described.components[0], i).rows == page_tokens_;
    (dealt ? dealt_bytes_ : joined_bytes_) += covered;
  }
}

void Coverage::add_buffer(const KvComponent& component, std::size_t buffer, std::uint64_t covered,
                          bool elided) {
  const KvBuffer& mine = component.buffers[buffer];
  const std::uint64_t needed = mine.item_len * divisor_;
  if (covered == needed || (covered == 0 && (elided || mine.optional))) return;
  const std::string layer = component.layer_ids.empty()
                                ? std::string()
                                : fmt::format(" (layer {})", component.layer_ids[buffer]);
  check_ = {
      Code::kIncompatible, Origin::kPeer,
      fmt::format("the room's prefill ranks bring {} of {} bytes of each page of {} buffer "
                  "{}{}: are all of them listed, and each once?",
                  covered / divisor_, mine.item_len, kv_pool_name(component.pool), buffer, layer)};
}

std::uint64_t Coverage::pages_for(std::uint64_t source_pages) const {
  return pages_needed(source_pages, token_ranks_);
}

std::uint64_t Coverage::bytes_for(std::uint64_t pages, std::uint64_t source_pages) const {
  if (token_ranks_ == 1) return pages * (joined_bytes_ / divisor_);
  // Rows of this rank among the first `tokens` of the room.
  const std::uint64_t tokens = source_pages * page_tokens_;
  const std::uint64_t rows = (tokens + token_ranks_ - 1 - dcp_rank_) / token_ranks_;
  return rows * (dealt_bytes_ / divisor_ / page_tokens_) +
         tokens * (joined_bytes_ / divisor_ / page_tokens_ / token_ranks_);
}

}  // namespace kvmend::kv
