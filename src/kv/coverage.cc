#include "kv/coverage.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "kv/geometry.h"
#include "kv/layout.h"

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
  if (good && !one.fields.empty()) good = one.fields.back() < component.fields.size();
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
    // A page of prefill's must be a whole number of tokens.
    const std::uint64_t tokens = std::uint64_t{layout.page_tokens} * one->token_ranks;
    const bool known = (one->token_ranks == 1 || one->token_ranks == layout.rank.dcp_size) &&
                       tokens % one->join == 0;
    // Page numbers are counted by these, even by those who bring nothing.
    if (known && one->bytes.empty()) {
      token_ranks_ = std::max(token_ranks_, one->token_ranks);
      fit_ = {.join = std::max(fit_.join, one->join), .split = std::max(fit_.split, one->split)};
      continue;
    }
    if (first == nullptr) first = one;
    if (!known || one->divisor != first->divisor || one->token_ranks != first->token_ranks ||
        one->join != first->join || one->split != first->split) {
      check_ = {
          Code::kIncompatible, Origin::kPeer,
          fmt::format("prefill ranks share {} pages among {} and {} ranks, their tokens among "
                      "{} and {} of {}; {}:{} and {}:{} of their pages fill one of ours",
                      kv_pool_name(component.pool), first->divisor, one->divisor,
                      first->token_ranks, one->token_ranks, layout.rank.dcp_size, first->join,
                      first->split, one->join, one->split)};
      return;
    }
  }
  add_fields(component, writers);
  if (first != nullptr) {
    divisor_ = first->divisor;
    token_ranks_ = first->token_ranks;
    fit_ = {.join = first->join, .split = first->split};
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

void Coverage::add_fields(const KvComponent& component,
                          std::span<const wire::KvCoverage* const> writers) {
  const auto refuse = [&](std::uint32_t field, std::string_view what) {
    check_ = {Code::kIncompatible, Origin::kPeer,
              fmt::format("aux field \"{}\" is {} the room's prefill ranks",
                          component.fields[field].name, what)};
  };
  std::vector<std::uint32_t> brought(component.fields.size());
  for (const wire::KvCoverage* one : writers)
    for (const std::uint32_t field : one->fields)
      if (++brought[field] > 1) return refuse(field, "brought by several of");
  for (std::uint32_t field = 0; field < brought.size(); ++field) {
    if (brought[field] != 0) {
      fields_.push_back(field);
    } else if (component.fields[field].required) {
      return refuse(field, "required, and brought by none of");
    }
  }
  if (!component.fields.empty() && fields_.empty())
    check_ = {Code::kIncompatible, Origin::kPeer,
              "none of the room's prefill ranks brings an aux field"};
}

std::uint64_t Coverage::needed(const KvComponent& component, std::size_t buffer) const {
  const std::uint64_t row = component.buffers[buffer].item_len;
  if (component.fields.empty()) return row * divisor_;
  std::uint64_t sum = 0;
  for (const std::uint32_t field : fields_) {
    const KvField& one = component.fields[field];
    if (one.buffer == buffer) sum += one.bytes != 0 ? one.bytes : row - one.offset;
  }
  return sum;
}

void Coverage::add_buffer(const KvComponent& component, std::size_t buffer, std::uint64_t covered,
                          bool elided) {
  const KvBuffer& mine = component.buffers[buffer];
  const std::uint64_t must = needed(component, buffer);
  if (covered == must || (covered == 0 && (elided || mine.optional))) return;
  const std::string layer = component.layer_ids.empty()
                                ? std::string()
                                : fmt::format(" (layer {})", component.layer_ids[buffer]);
  check_ = {Code::kIncompatible, Origin::kPeer,
            fmt::format("the room's prefill ranks bring {} of {} bytes of each page of {} buffer "
                        "{}{}: are all of them listed, and each once?",
                        covered / divisor_, must / divisor_, kv_pool_name(component.pool), buffer,
                        layer)};
}

std::uint64_t Coverage::bytes_for(std::uint64_t pages, std::uint64_t source_pages) const {
  const std::uint64_t joined = joined_bytes_ / divisor_;
  const std::uint64_t dealt = dealt_bytes_ / divisor_;
  if (fit_ == PageFit{}) return pages * (joined + dealt);
  // What both sides' pages reach to: the last one of either may be filled in part.
  const std::uint64_t virtual_page = std::uint64_t{page_tokens_} * token_ranks_;
  const std::uint64_t tokens =
      std::min(source_pages * (virtual_page * fit_.split / fit_.join), pages * virtual_page);
  // Rows of this rank among the first `tokens` of the room.
  const std::uint64_t rows = (tokens + token_ranks_ - 1 - dcp_rank_) / token_ranks_;
  return rows * (dealt / page_tokens_) + tokens * (joined / virtual_page);
}

}  // namespace kvmend::kv
