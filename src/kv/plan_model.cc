#include "kv/plan_model.h"

#include "base/check.h"

namespace kvmend::kv {
namespace {

enum Kind : std::uint32_t { kCache = 1, kState = 2, kAuxRow = 3 };

std::vector<std::uint32_t> state_columns(const PlanModel::State& state, std::uint32_t rank,
                                         std::uint32_t size) {
  std::vector<std::uint32_t> out;
  std::uint32_t base = 0;
  for (const std::uint32_t group : state.groups) {
    for (const std::uint32_t column : held_columns(group, rank, size)) out.push_back(base + column);
    base += group;
  }
  if (state.groups.empty()) out = {0};
  return out;
}

KvShape state_shape(const PlanModel::State& state, std::uint32_t rank, std::uint32_t size) {
  if (state.groups.empty()) return {};
  return {.rows = state.rows,
          .columns = static_cast<std::uint32_t>(state_columns(state, rank, size).size()),
          .total_columns = std::accumulate(state.groups.begin(), state.groups.end(), 0U),
          .groups = state.groups.size() == 1 ? std::vector<std::uint32_t>{} : state.groups};
}

/// State pools and aux are laid out alike on both sides. `has`: layers of this rank.
template <class Has>
void add_states(const PlanModel& model, ModelRank& rank, std::uint32_t tp_rank,
                std::uint32_t tp_size, const std::vector<std::vector<std::uint32_t>>& pages,
                Has&& has) {
  for (std::size_t s = 0; s < model.states.size(); ++s) {
    const PlanModel::State& state = model.states[s];
    std::vector<std::uint32_t> here;
    for (const std::uint32_t layer : state.layers)
      if (has(model.layers[layer])) here.push_back(layer);
    if (here.empty()) continue;
    const ModelPage page{state.rows, state_columns(state, tp_rank, tp_size), state.unit, false};
    rank.add_component({.pool = state.pool,
                        .dtype = "f32",
                        .items = PlanModel::kItems,
                        .shapes = {state_shape(state, tp_rank, tp_size)}});
    for (const std::uint32_t layer : here) {
      rank.add_buffer(page.bytes(), PlanModel::kItems, model.layers[layer].id);
      for (std::uint32_t i = 0; i < pages[s].size(); ++i)
        for (std::uint64_t b = 0; b < page.bytes(); ++b) {
          const ModelPage::Place at = page.at(b);
          rank.meaning.back().back()[pages[s][i] * page.bytes() + b] = {
              {kState, static_cast<std::uint32_t>(s), layer, i, at.row, at.column, at.byte}};
        }
    }
  }
}

void add_aux(const PlanModel& model, ModelRank& rank, std::uint32_t row) {
  rank.add_component({.pool = KvPool::kAux, .dtype = "u8", .items = PlanModel::kItems});
  rank.add_buffer(model.aux_bytes, PlanModel::kItems, std::nullopt);
  for (std::uint32_t b = 0; b < model.aux_bytes; ++b)
    rank.meaning.back().back()[row * model.aux_bytes + b] = {{kAuxRow, b}};
}

Meaning cache_byte(const PlanModel& model, std::uint32_t layer, std::uint32_t half,
                   std::uint32_t token, const ModelPage::Place& at) {
  if (token >= model.room_pages * model.tokens * model.prefill_dcp) return std::nullopt;
  return {{kCache, layer, half, token, at.column, at.byte}};
}

}  // namespace

ModelRank make_prefill_rank(const PlanModel& model, const KvServer& at, std::uint32_t dcp_rank) {
  ModelRank rank;
  const KvTopology& top = model.prefill;
  rank.layout.page_tokens = model.tokens;
  rank.layout.total_kv_heads = model.heads;
  rank.layout.head_dim = model.unit;
  rank.layout.element_order = model.source_order;
  rank.layout.share = top.share;
  rank.layout.rank = {.tp_rank = at.tp_rank,
                      .tp_size = top.tp_size,
                      .pp_rank = at.pp_rank,
                      .pp_size = top.pp_size,
                      .cp_rank = at.cp_rank,
                      .cp_size = top.cp_size,
                      .dcp_rank = dcp_rank,
                      .dcp_size = model.prefill_dcp};
  const bool hnd = model.source_order == "hnd";
  const std::vector<std::uint32_t> heads = held_columns(model.heads, at.tp_rank, top.tp_size);
  const auto columns = static_cast<std::uint32_t>(heads.size());
  rank.layout.kv_heads = columns;
  const auto shape = [&](std::uint32_t rows) {
    return KvShape{
        .rows = rows, .columns = columns, .total_columns = model.heads, .columns_first = hnd};
  };
  const auto has = [&](const PlanModel::Layer& layer) {
    return layer.stage == at.pp_rank && !layer.only_decode &&
           (top.share != KvShare::kLayers || layer.context == at.cp_rank);
  };
  const std::uint32_t dealt = top.share != KvShare::kInterleaved ? 1
                              : top.cp_size > 1                  ? top.cp_size
                                                                 : top.tp_size;
  const std::uint32_t mine = top.cp_size > 1 ? at.cp_rank : at.tp_rank;
  // Shape 1: draft layers, whose pages hold the tokens of all ranks.
  rank.add_component({.dtype = "bf16",
                      .items = PlanModel::kItems,
                      .shapes = {shape(model.tokens), shape(model.tokens * model.prefill_dcp)}});
  for (std::uint32_t half = 0; half < model.halves; ++half)
    for (std::uint32_t l = 0; l < model.layers.size(); ++l) {
      const PlanModel::Layer& layer = model.layers[l];
      if (!has(layer)) continue;
      const bool none = layer.elided_source;
      const std::uint32_t rows = layer.draft ? model.tokens * model.prefill_dcp : model.tokens;
      const ModelPage page{rows, heads, model.unit, hnd};
      rank.add_buffer(none ? 0 : page.bytes(), PlanModel::kItems, layer.id, layer.draft ? 1 : 0);
      if (none) continue;
      for (std::uint32_t p = 0; p < model.room_pages; ++p) {
        const std::uint32_t logical = model.source_pages[p];
        if (dealt > 1 && logical % dealt != mine) continue;
        for (std::uint64_t b = 0; b < page.bytes(); ++b) {
          const ModelPage::Place where = page.at(b);
          const std::uint32_t row = p * rows + where.row;
          rank.meaning.back().back()[logical / dealt * page.bytes() + b] = cache_byte(
              model, l, half, layer.draft ? row : row * model.prefill_dcp + dcp_rank, where);
        }
      }
    }
  KVM_CHECK(!rank.layout.components.back().buffers.empty(), "every rank of a model has a layer");
  add_aux(model, rank, model.source_row);
  add_states(model, rank, at.tp_rank, top.tp_size, model.source_states, has);
  rank.settle();
  rank.fill();
  return rank;
}

ModelRank make_decode_rank(const PlanModel& model, const KvRank& at) {
  ModelRank rank;
  rank.layout.page_tokens = model.decode_tokens;
  rank.layout.head_dim = model.unit;
  rank.layout.element_order = model.destination_order;
  rank.layout.rank = at;
  const bool hnd = model.destination_order == "hnd";
  const std::vector<std::uint32_t> heads = held_columns(model.heads, at.tp_rank, at.tp_size);
  const auto columns = static_cast<std::uint32_t>(heads.size());
  if (model.decode_knows_heads) {
    rank.layout.kv_heads = columns;
    rank.layout.total_kv_heads = model.heads;
  }
  const auto has = [&](const PlanModel::Layer& layer) {
    return at.pp_size == 1 || layer.stage == at.pp_rank;
  };
  const auto shape = [&](std::uint32_t rows) {
    return KvShape{
        .rows = rows, .columns = columns, .total_columns = model.heads, .columns_first = hnd};
  };
  const auto add_cache = [&](KvPool pool, bool device, const std::vector<std::uint32_t>& pages) {
    KvComponent cache{.pool = pool, .dtype = "bf16", .items = PlanModel::kItems};
    // Shape 1: draft layers, whose pages hold the tokens of all ranks.
    if (model.decode_knows_heads)
      cache.shapes = {shape(model.decode_tokens), shape(model.decode_tokens * at.dcp_size)};
    rank.add_component(std::move(cache));
    for (std::uint32_t half = 0; half < model.halves; ++half)
      for (std::uint32_t l = 0; l < model.layers.size(); ++l) {
        const PlanModel::Layer& layer = model.layers[l];
        if (!has(layer) || layer.device != device) continue;
        const std::uint32_t rows =
            layer.draft ? model.decode_tokens * at.dcp_size : model.decode_tokens;
        const ModelPage page{rows, heads, model.unit, hnd};
        const bool none = layer.elided_destination;
        rank.add_buffer(none ? 0 : page.bytes(), PlanModel::kItems, layer.id,
                        layer.draft && model.decode_knows_heads ? 1 : 0, layer.only_decode);
        if (none || layer.only_decode || layer.elided_source) continue;
        for (std::uint32_t q = 0; q < pages.size(); ++q)
          for (std::uint64_t b = 0; b < page.bytes(); ++b) {
            const ModelPage::Place where = page.at(b);
            const std::uint32_t token =
                layer.draft ? q * rows + where.row
                            : (q * model.decode_tokens + where.row) * at.dcp_size + at.dcp_rank;
            rank.meaning.back().back()[pages[q] * page.bytes() + b] =
                cache_byte(model, l, half, token, where);
          }
      }
  };
  add_cache(KvPool::kKv, false, model.destination_pages);
  KVM_CHECK(!rank.layout.components.back().buffers.empty(), "every rank of a model has a layer");
  if (std::ranges::any_of(model.layers, [&](const auto& l) { return l.device && has(l); }))
    add_cache(KvPool::kKvDevice, true, model.device_pages);
  add_aux(model, rank, model.destination_row);
  add_states(model, rank, at.tp_rank, at.tp_size, model.destination_states, has);
  rank.settle();
  return rank;
}

}  // namespace kvmend::kv
