// The plan against a naive model, byte by byte: random models, parallelism, element orders, pages
// and chunks. Every byte that a decode rank wants is written exactly once, with the right byte, by
// one of the prefill ranks that the rank map names, and nothing else is touched.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstring>
#include <set>

#include "kv/coverage.h"
#include "kv/plan.h"
#include "kv/plan_model.h"

namespace kvmend::kv {
namespace {

template <class T>
T pick(std::initializer_list<T> of) {
  return *rc::gen::elementOf(std::vector<T>(of));
}

std::uint32_t below(std::uint32_t end) {
  return *rc::gen::inRange<std::uint32_t>(0, end);
}

bool chance(std::uint32_t percent) {
  return below(100) < percent;
}

/// Distinct pages, in runs and jumps, so that merging has something to do.
std::vector<std::uint32_t> random_pages(std::uint32_t items, std::uint32_t count) {
  std::vector<std::uint32_t> all(items);
  std::iota(all.begin(), all.end(), 0U);
  std::ranges::rotate(all, all.begin() + below(items));
  for (std::uint32_t i = below(4); i > 0; --i) std::swap(all[below(items)], all[below(items)]);
  all.resize(count);
  return all;
}

/// Tensor sizes of which one divides the other, and a number of columns that both can share.
bool divides(std::uint32_t a, std::uint32_t b) {
  return a % b == 0 || b % a == 0;
}

std::uint32_t columns_for(std::uint32_t a, std::uint32_t b) {
  std::vector<std::uint32_t> fitting;
  for (const std::uint32_t n : {1U, 2U, 3U, 4U, 6U, 8U, 12U})
    if (divides(n, a) && divides(n, b)) fitting.push_back(n);
  return *rc::gen::elementOf(fitting);
}

void choose_topology(PlanModel& model) {
  KvTopology& top = model.prefill;
  do {
    top.tp_size = pick({1U, 2U, 3U, 4U, 6U, 8U});
    model.decode_tp = pick({1U, 2U, 3U, 4U, 6U, 8U});
  } while (!divides(top.tp_size, model.decode_tp));
  top.pp_size = pick({1U, 1U, 2U, 3U});
  model.decode_pp = chance(50) ? top.pp_size : 1;
  model.decode_dcp = pick({1U, 1U, 2U, 3U});
  top.cp_size = pick({1U, 1U, 2U, 3U});
  top.share =
      top.cp_size == 1
          ? KvShare::kLeader
          : pick({KvShare::kLeader, KvShare::kLayers, KvShare::kRanges, KvShare::kInterleaved});
  model.heads = columns_for(top.tp_size, model.decode_tp);
  if (top.cp_size == 1 && top.tp_size == model.decode_tp && chance(25)) {
    top.share = KvShare::kInterleaved;  // MLA, its pages dealt out among tensor ranks
    model.heads = 1;
  }
  top.total_kv_heads = model.heads;
  model.decode_knows_heads = model.decode_dcp > 1 || chance(75);
}

void choose_layers(PlanModel& model) {
  const KvTopology& top = model.prefill;
  std::uint32_t id = below(3);
  for (std::uint32_t stage = 0; stage < top.pp_size; ++stage)
    for (std::uint32_t context = 0; context < top.cp_size; ++context)
      for (std::uint32_t n = 1 + below(2); n > 0; --n) {
        // The first of a stage and context stays plain, so that every rank has a layer.
        const bool plain = n == 1;
        model.layers.push_back({.id = id++,
                                .stage = stage,
                                .context = context,
                                .elided_source = !plain && chance(15),
                                .elided_destination = !plain && chance(15)});
      }
  for (std::uint32_t n = below(3); n > 0; --n)
    model.layers.push_back({.id = 1000 + n,
                            .stage = top.pp_size - 1,
                            .draft = true,
                            .only_decode = chance(30),
                            .device = chance(50)});
}

void choose_states(PlanModel& model) {
  for (std::uint32_t n = below(3); n > 0; --n) {
    PlanModel::State state{.pool = n == 1 ? KvPool::kMamba : KvPool::kQsaPending,
                           .rows = 1 + below(3),
                           .unit = 1 + below(3),
                           .pages = below(4)};
    if (chance(70))
      for (std::uint32_t g = 1 + below(3); g > 0; --g)
        state.groups.push_back(columns_for(model.prefill.tp_size, model.decode_tp));
    else
      state.rows = 1;
    for (std::uint32_t l = 0; l < model.layers.size(); ++l)
      if (!model.layers[l].draft && (chance(60) || model.layers[l].stage == 0))
        state.layers.push_back(l);
    if (model.prefill.share == KvShare::kInterleaved && state.pool == KvPool::kDsa) continue;
    // A pool that only some stages or contexts have can't be told from one that is missing.
    std::set<std::uint32_t> stages;
    for (const std::uint32_t l : state.layers) stages.insert(model.layers[l].stage);
    if (model.decode_pp != 1 && stages.size() < model.prefill.pp_size) continue;
    if (!state.groups.empty()) model.prefill.divided_states = true;
    model.states.push_back(std::move(state));
    model.source_states.push_back(random_pages(PlanModel::kItems, model.states.back().pages));
    model.destination_states.push_back(random_pages(PlanModel::kItems, model.states.back().pages));
  }
}

PlanModel random_model() {
  PlanModel model;
  choose_topology(model);
  model.tokens = model.decode_tokens = 1 + below(4);
  if (chance(50)) (chance(50) ? model.tokens : model.decode_tokens) = 1 + below(12);
  if (model.decode_dcp > 1 && chance(25)) model.prefill_dcp = model.decode_dcp;
  model.unit = 1 + below(3);
  model.halves = 1 + below(2);
  model.source_order = pick<std::string>({"nhd", "hnd"});
  model.destination_order = chance(70) ? model.source_order : pick<std::string>({"nhd", "hnd"});
  choose_layers(model);
  choose_states(model);
  const std::uint32_t virtual_page = model.decode_tokens * model.decode_dcp / model.prefill_dcp;
  model.room_pages = below(1 + std::min(8U, PlanModel::kItems * virtual_page / model.tokens));
  const std::uint32_t dealt = model.prefill.share != KvShare::kInterleaved ? 1
                              : model.prefill.cp_size > 1                  ? model.prefill.cp_size
                                                                           : model.prefill.tp_size;
  model.source_pages = random_pages(PlanModel::kItems * dealt, model.room_pages);
  // Prefill's last page may hold one token only, and decode no page for the others.
  const std::uint32_t tokens = model.room_pages * model.tokens;
  const std::uint32_t most = (tokens + virtual_page - 1) / virtual_page;
  const std::uint32_t least =
      model.room_pages == 0 ? 0 : (tokens - model.tokens + virtual_page) / virtual_page;
  const std::uint32_t needed = least + below(most - least + 1);
  model.destination_pages = random_pages(PlanModel::kItems, needed);
  if (std::ranges::any_of(model.layers, &PlanModel::Layer::device))
    model.device_pages = random_pages(PlanModel::kItems, needed);
  model.source_row = below(PlanModel::kItems);
  model.destination_row = below(PlanModel::kItems);
  return model;
}

KvRank random_decode_rank(const PlanModel& model) {
  return {.tp_rank = below(model.decode_tp),
          .tp_size = model.decode_tp,
          .pp_rank = below(model.decode_pp),
          .pp_size = model.decode_pp,
          .dcp_rank = below(model.decode_dcp),
          .dcp_size = model.decode_dcp};
}

/// The decode rank's pools, one region per buffer, and how often each byte was written.
struct Target {
  const PlanModel& model;
  ModelRank& rank;
  wire::KvLayout described;
  std::vector<std::vector<std::byte>*> memory;  // by region slot
  std::vector<std::vector<int>> written;
  std::vector<std::size_t> first_slot;  // by component
  std::vector<std::uint64_t> bytes;     // by component: what writers said they would bring

  Target(const PlanModel& m, ModelRank& r) : model(m), rank(r) {
    std::vector<std::vector<BufferPlace>> places;
    for (std::size_t c = 0; c < r.memory.size(); ++c) {
      first_slot.push_back(memory.size());
      auto& row = places.emplace_back();
      for (auto& buffer : r.memory[c]) {
        row.push_back(buffer.empty()
                          ? BufferPlace{}
                          : BufferPlace{{static_cast<std::uint32_t>(memory.size()), 1}, 0});
        memory.push_back(&buffer);
        written.emplace_back(buffer.size());
      }
    }
    described = describe(r.layout, places);
    bytes.resize(r.memory.size());
  }

  [[nodiscard]] const std::vector<std::uint32_t>* pages_of(std::size_t c) const {
    const KvPool pool = rank.layout.components[c].pool;
    if (pool == KvPool::kKv) return &model.destination_pages;
    if (pool == KvPool::kKvDevice) return &model.device_pages;
    if (pool == KvPool::kAux) return nullptr;
    for (std::size_t s = 0; s < model.states.size(); ++s)
      if (model.states[s].pool == pool) return &model.destination_states[s];
    return nullptr;
  }
};

const std::vector<std::uint32_t>& source_state(const PlanModel& model, KvPool pool) {
  for (std::size_t s = 0; s < model.states.size(); ++s)
    if (model.states[s].pool == pool) return model.source_states[s];
  static const std::vector<std::uint32_t> kNone;
  return kNone;
}

void carry_out(const TransferPlan& plan, std::uint32_t c, const ChunkPages& chunk, Target& target) {
  const auto runs = plan.runs(c, chunk);
  const Amount promised = plan.amount(c, runs);
  std::vector<transport::Piece> pieces;
  plan.append(c, runs, pieces);
  RC_ASSERT(pieces.size() == promised.pieces);
  std::uint64_t bytes = 0;
  for (const transport::Piece& piece : pieces) {
    RC_ASSERT(piece.length > 0U);
    std::vector<std::byte>& into = *target.memory[piece.region.slot];
    RC_ASSERT(piece.offset + piece.length <= into.size());
    std::memcpy(into.data() + piece.offset, piece.local, piece.length);
    for (std::uint64_t i = 0; i < piece.length; ++i)
      RC_ASSERT(++target.written[piece.region.slot][piece.offset + i] == 1);
    bytes += piece.length;
  }
  RC_ASSERT(bytes == promised.bytes);
  target.bytes[c] += bytes;
}

/// Everything that one prefill rank sends, in random chunks.
void send_room(const PlanModel& model, const TransferPlan& plan, Target& target) {
  for (std::uint32_t c = 0; c < target.rank.layout.components.size(); ++c) {
    if (plan.components()[c].buffers.empty()) continue;
    const KvPool pool = target.rank.layout.components[c].pool;
    if (is_kv(pool)) {
      for (std::uint32_t first = 0; first < model.room_pages;) {
        const std::uint32_t count = 1 + below(model.room_pages - first);
        carry_out(plan, c,
                  {.source = std::span(model.source_pages).subspan(first, count),
                   .destination = *target.pages_of(c),
                   .first = first,
                   .total = model.room_pages},
                  target);
        first += count;
      }
    } else if (pool == KvPool::kAux) {
      carry_out(plan, c,
                {.source = {&model.source_row, 1},
                 .destination = {&model.destination_row, 1},
                 .total = 1},
                target);
    } else {
      const auto& source = source_state(model, pool);
      carry_out(plan, c,
                {.source = source,
                 .destination = *target.pages_of(c),
                 .total = static_cast<std::uint32_t>(source.size())},
                target);
    }
  }
}

std::vector<Coverage> coverage_of(const KvLayout& layout,
                                  const std::vector<std::vector<wire::KvCoverage>>& writers) {
  std::vector<Coverage> out;
  for (std::size_t c = 0; c < layout.components.size(); ++c) {
    std::vector<const wire::KvCoverage*> all;
    for (const auto& writer : writers) all.push_back(&writer[c]);
    out.emplace_back(layout, c, all);
  }
  return out;
}

void expect_right_bytes(const Target& target) {
  for (std::size_t c = 0; c < target.rank.memory.size(); ++c)
    for (std::size_t b = 0; b < target.rank.memory[c].size(); ++b)
      for (std::size_t i = 0; i < target.rank.memory[c][b].size(); ++i) {
        const Meaning& meaning = target.rank.meaning[c][b][i];
        const int times = target.written[target.first_slot[c] + b][i];
        RC_ASSERT(times == (meaning ? 1 : 0));
        const std::byte expected = meaning ? ModelRank::value_of(*meaning) : std::byte{0};
        RC_ASSERT(target.rank.memory[c][b][i] == expected);
      }
}

RC_GTEST_PROP(Plan, EveryByteIsWrittenOnceByTheRightRankAndNothingElse, ()) {
  const PlanModel model = random_model();
  const KvRank at = random_decode_rank(model);
  ModelRank decode = make_decode_rank(model, at);
  RC_ASSERT(check_layout(decode.layout).is_ok());
  Target target(model, decode);
  const auto map = map_kv_ranks(model.prefill, at);
  RC_ASSERT(map.has_value());
  std::vector<std::vector<wire::KvCoverage>> writers;
  for (const KvServer& server : map->servers) {
    const ModelRank prefill =
        make_prefill_rank(model, server, model.prefill_dcp > 1 ? at.dcp_rank : 0);
    RC_ASSERT(check_layout(prefill.layout).is_ok());
    const auto plan = TransferPlan::prepare(prefill.layout, target.described);
    if (!plan) RC_FAIL(plan.error().to_string());
    auto& coverage = writers.emplace_back();
    bool brings = false;
    for (const ComponentMap& component : plan->components()) {
      coverage.push_back(component.coverage);
      brings = brings || !component.buffers.empty();
    }
    RC_ASSERT(server.writes || !brings);
    send_room(model, *plan, target);
  }
  expect_right_bytes(target);
  // What decode works out from the writers' words is what they brought.
  const std::vector<Coverage> coverage = coverage_of(decode.layout, writers);
  for (std::size_t c = 0; c < coverage.size(); ++c) {
    if (!coverage[c].check().is_ok()) RC_FAIL(coverage[c].check().to_string());
    const auto* pages = target.pages_of(c);
    const std::size_t count = pages == nullptr ? 1 : pages->size();
    RC_ASSERT(coverage[c].bytes_for(count, model.room_pages) == target.bytes[c]);
    if (is_kv(decode.layout.components[c].pool))
      RC_ASSERT(coverage[c].takes(model.room_pages, count));
  }
  // Case I8: without one of those that write, nothing is complete.
  for (std::size_t w = 0; w < writers.size(); ++w) {
    const bool brings = std::ranges::any_of(
        writers[w], [](const wire::KvCoverage& one) { return !one.bytes.empty(); });
    auto fewer = writers;
    fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(w));
    const std::vector<Coverage> rest = coverage_of(decode.layout, fewer);
    const bool whole =
        std::ranges::all_of(rest, [](const Coverage& one) { return one.check().is_ok(); });
    RC_ASSERT(whole == !brings);
  }
}

}  // namespace
}  // namespace kvmend::kv
