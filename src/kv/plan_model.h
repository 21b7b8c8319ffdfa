// For tests only: a model that knows what every byte of every rank's pools means, worked out byte
// by byte from the definitions, sharing no code with the plan.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "kv/layout.h"
#include "kvmend/kv.h"
#include "kvmend/kv_ranks.h"

namespace kvmend::kv {

/// Rank `rank` of `size` holds columns of a block of `total`.
inline std::vector<std::uint32_t> held_columns(std::uint32_t total, std::uint32_t rank,
                                               std::uint32_t size) {
  std::vector<std::uint32_t> out;
  for (std::uint32_t column = 0; column < total; ++column)
    if (total >= size ? column * size / total == rank : rank * total / size == column)
      out.push_back(column);
  return out;
}

/// A model with one request's worth of content.
struct PlanModel {
  struct Layer {
    std::uint32_t id = 0;
    std::uint32_t stage = 0;    ///< of prefill
    std::uint32_t context = 0;  ///< the context rank that has it, with KvShare::kLayers
    bool draft = false;         ///< every decode rank holds all tokens
    bool elided_source = false;
    bool elided_destination = false;
    bool only_decode = false;  ///< optional: prefill hasn't got it
    bool device = false;       ///< decode keeps it in the kv_device pool
  };
  /// A state pool; its columns are divided, or not.
  struct State {
    KvPool pool = KvPool::kMamba;
    std::uint32_t rows = 1;
    std::vector<std::uint32_t> groups;  ///< columns of each; empty: not divided
    std::uint32_t unit = 1;
    std::vector<std::uint32_t> layers;  ///< indices into `layers`
    std::uint32_t pages = 0;
  };

  std::uint32_t heads = 1;
  std::uint32_t tokens = 1;  ///< of a page of prefill
  std::uint32_t decode_tokens = 1;
  std::uint32_t unit = 1;    ///< bytes of one token of one head
  std::uint32_t halves = 2;  ///< K and V, or one
  std::vector<Layer> layers;
  std::vector<State> states;
  std::uint32_t aux_bytes = 5;
  KvTopology prefill;
  std::uint32_t decode_tp = 1;
  std::uint32_t decode_pp = 1;
  std::uint32_t decode_dcp = 1;
  std::uint32_t prefill_dcp = 1;  ///< or the same: then ranks of equal numbers meet
  std::string source_order = "nhd";
  std::string destination_order = "nhd";
  bool decode_knows_heads = true;

  std::uint32_t room_pages = 0;
  std::vector<std::uint32_t> source_pages;  ///< logical
  std::vector<std::uint32_t> destination_pages;
  std::vector<std::uint32_t> device_pages;
  std::vector<std::vector<std::uint32_t>> source_states;
  std::vector<std::vector<std::uint32_t>> destination_states;
  std::uint32_t source_row = 0;
  std::uint32_t destination_row = 0;

  static constexpr std::uint32_t kItems = 24;
};

/// What a byte is; nothing stands for a byte that belongs to nobody.
using Meaning = std::optional<std::vector<std::uint32_t>>;

/// The pools of one rank, with what each byte means.
struct ModelRank {
  KvLayout layout;
  std::vector<std::vector<std::vector<std::byte>>> memory;  ///< by component, by buffer
  std::vector<std::vector<std::vector<Meaning>>> meaning;

  void add_component(KvComponent component) {
    layout.components.push_back(std::move(component));
    memory.emplace_back();
    meaning.emplace_back();
  }
  void add_buffer(std::uint64_t item_len, std::uint32_t items, std::optional<std::uint32_t> layer,
                  std::uint32_t shape = 0, bool optional = false) {
    KvComponent& component = layout.components.back();
    component.buffers.push_back({nullptr, item_len, shape, optional});
    if (layer) component.layer_ids.push_back(*layer);
    memory.back().emplace_back(item_len * items);
    meaning.back().emplace_back(item_len * items);
  }
  /// Fixes the addresses; call when everything is there.
  void settle() {
    for (std::size_t c = 0; c < memory.size(); ++c)
      for (std::size_t b = 0; b < memory[c].size(); ++b)
        layout.components[c].buffers[b].base = memory[c][b].empty() ? nullptr : memory[c][b].data();
  }
  void fill() {
    for (std::size_t c = 0; c < memory.size(); ++c)
      for (std::size_t b = 0; b < memory[c].size(); ++b)
        for (std::size_t i = 0; i < memory[c][b].size(); ++i)
          if (meaning[c][b][i]) memory[c][b][i] = value_of(*meaning[c][b][i]);
  }
  static std::byte value_of(const std::vector<std::uint32_t>& what) {
    std::uint64_t mix = 0x9E3779B97F4A7C15ULL;
    for (const std::uint32_t one : what) mix = (mix ^ one) * 0xC2B2AE3D27D4EB4FULL + (mix >> 31);
    return static_cast<std::byte>(mix >> 40);
  }
};

/// One side's way to lay a page out.
struct ModelPage {
  std::uint32_t rows;
  std::vector<std::uint32_t> columns;  ///< of the model, in local order
  std::uint32_t unit;
  bool columns_first;

  [[nodiscard]] std::uint64_t bytes() const { return std::uint64_t{rows} * columns.size() * unit; }
  struct Place {
    std::uint32_t row, column, byte;
  };
  [[nodiscard]] Place at(std::uint64_t offset) const {
    const auto byte = static_cast<std::uint32_t>(offset % unit);
    const auto element = static_cast<std::uint32_t>(offset / unit);
    const auto width = static_cast<std::uint32_t>(columns.size());
    return columns_first ? Place{element % rows, columns[element / rows], byte}
                         : Place{element / width, columns[element % width], byte};
  }
};

/// `dcp_rank`: of those that deal tokens out at prefill, too.
[[nodiscard]] ModelRank make_prefill_rank(const PlanModel& model, const KvServer& at,
                                          std::uint32_t dcp_rank);
[[nodiscard]] ModelRank make_decode_rank(const PlanModel& model, const KvRank& at);

}  // namespace kvmend::kv
