// Decode: what its writers together bring of each page, and so how many bytes a room needs. The
// receiver alone decides Success (safety rule 2): a rank that is missing from the list of writers,
// or a layer that nobody has, must never look complete (case I8). Pure; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/page_runs.h"
#include "kvmend/kv.h"
#include "wire/kv_messages.h"

namespace kvmend::kv {

/// One component of decode's layout, over all writers of a room.
class Coverage {
 public:
  /// `component` of `layout`, ours. Errors of the sum: see `check`.
  Coverage(const KvLayout& layout, std::size_t component,
           std::span<const wire::KvCoverage* const> writers);

  /// Whether every byte of a page is written by exactly one writer, except buffers that are
  /// optional or empty at prefill. Errors: kIncompatible, naming buffer and both numbers;
  /// kProtocolError (a writer's numbers make no sense).
  [[nodiscard]] const Status& check() const { return check_; }
  /// The named fields that some writer brings: indices, in order.
  [[nodiscard]] const std::vector<std::uint32_t>& fields() const { return fields_; }

  /// Whether `pages` of this component are what `source_pages` of prefill fill.
  [[nodiscard]] bool takes(std::uint64_t source_pages, std::uint64_t pages) const {
    return fit_.takes(source_pages, pages);
  }
  /// Bytes that all writers together bring for `pages` of this component, of a room with
  /// `source_pages` at prefill.
  [[nodiscard]] std::uint64_t bytes_for(std::uint64_t pages, std::uint64_t source_pages) const;

 private:
  void add_buffer(const KvComponent& component, std::size_t buffer, std::uint64_t covered,
                  bool elided);
  void add_fields(const KvComponent& component, std::span<const wire::KvCoverage* const> writers);
  /// Bytes of a page of the buffer that must come.
  [[nodiscard]] std::uint64_t needed(const KvComponent& component, std::size_t buffer) const;

  std::uint32_t page_tokens_ = 1;
  std::uint32_t dcp_rank_ = 0;
  std::uint32_t token_ranks_ = 1;
  PageFit fit_;
  std::uint64_t dealt_bytes_ = 0;   ///< of a page, in buffers whose rows are this rank's tokens
  std::uint64_t joined_bytes_ = 0;  ///< of a page, in buffers that hold every token
  std::uint32_t divisor_ = 1;
  std::vector<std::uint32_t> fields_;
  Status check_;
};

}  // namespace kvmend::kv
