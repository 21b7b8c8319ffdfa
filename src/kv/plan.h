// The transfer plan: from two layouts and page indices to merged pieces. Pure; any thread.
//
// One mechanism for every kind of parallelism: buffers are paired by layer (kv/pairing.h), the
// columns that both ranks hold are intersected (kv/geometry.h), and each intersection becomes a
// buffer map (kv/buffer_map.h). All that is done once per pair of layouts; a chunk only walks the
// maps. docs/kv-layouts.md has the rules and a picture.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kv/buffer_map.h"
#include "kv/page_runs.h"
#include "kvmend/kv.h"
#include "transport/chunk.h"
#include "wire/kv_messages.h"

namespace kvmend::kv {

/// How one component of the destination is filled.
struct ComponentMap {
  KvPool pool = KvPool::kKv;                      ///< of the destination
  std::optional<std::uint32_t> source_component;  ///< nothing: this rank has nothing of it
  std::uint64_t destination_items = 0;
  PageShare share;
  std::uint32_t token_ranks = 1;  ///< among how many ranks the destination deals tokens out
  PageFit fit;
  PageSteps steps;             ///< of `fit`
  std::vector<RowSpan> dealt;  ///< by step; none where tokens aren't dealt
  /// What decode has already must be a multiple of so many tokens, so that pages begin together.
  std::uint64_t prefix_unit = 1;
  std::vector<BufferMap> buffers;
  wire::KvCoverage coverage;  ///< what decode is told of it

  /// How many pages decode announces at most when prefill sends `total`.
  [[nodiscard]] std::size_t destination_pages(std::size_t total) const { return fit.most(total); }
};

class TransferPlan {
 public:
  /// `here` (prefill) must be valid, `there` (decode) checked. Errors: kIncompatible, listing the
  /// differences with both sides' values ("page_tokens 64 here, 16 there").
  [[nodiscard]] static Result<TransferPlan> prepare(const KvLayout& here,
                                                    const wire::KvLayout& there);

  /// One map per component of the destination's layout.
  [[nodiscard]] std::span<const ComponentMap> components() const { return components_; }

  /// Where the pages of a chunk go. The component's `fit` takes its sizes.
  [[nodiscard]] std::vector<PageRun> runs(std::uint32_t component, const ChunkPages& chunk) const;
  /// What `append` would add for these runs.
  [[nodiscard]] Amount amount(std::uint32_t component, std::span<const PageRun> runs) const;
  /// Appends the pieces that move `runs` of a component. Pages must be within both pools.
  void append(std::uint32_t component, std::span<const PageRun> runs,
              std::vector<transport::Piece>& out) const;

 private:
  std::vector<ComponentMap> components_;
};

}  // namespace kvmend::kv
