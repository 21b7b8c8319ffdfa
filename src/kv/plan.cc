#include "kv/plan.h"

#include <algorithm>
#include <optional>
#include <string>

#include "base/check.h"
#include "base/try.h"
#include "kv/differences.h"
#include "kv/geometry.h"
#include "kv/layout.h"
#include "kv/pairing.h"
#include "kv/rank_map.h"

namespace kvmend::kv {
namespace {

using wire::KvComponent;

/// Bytes from column to column and from row to row of a page.
struct Steps {
  std::uint64_t column = 0;
  std::uint64_t row = 0;
};

Steps steps_of(const KvShape& shape, std::uint64_t unit) {
  if (shape.columns_first) return {.column = shape.rows * unit, .row = unit};
  return {.column = unit, .row = shape.columns * unit};
}

/// One side of a pair of buffers.
struct End {
  const wire::KvLayout& layout;
  const KvComponent& component;
  std::uint32_t buffer;
  KvShape shape;
  std::uint64_t bytes;  ///< of a page

  End(const wire::KvLayout& of, const KvComponent& in, std::uint32_t index)
      : layout(of),
        component(in),
        buffer(index),
        shape(shape_of(of, in, index)),
        bytes(item_len(in, index)) {}
  [[nodiscard]] std::uint64_t elements() const { return std::uint64_t{shape.rows} * shape.columns; }
};

/// Decode may not know how many heads there are (SGLang's doesn't say it): then its pages are
/// described by prefill's heads, and their bytes must come to the heads that its rank would hold.
bool lacks_heads(const wire::KvLayout& layout) {
  return layout.kv_heads == 0 && (layout.element_order == "nhd" || layout.element_order == "hnd");
}

void take_heads(const End& from, End& to) {
  const auto pool = static_cast<KvPool>(to.component.kind);
  const std::uint64_t elements = from.elements();
  const bool known = from.shape.total_columns != 0 && elements != 0 && from.bytes != 0 &&
                     from.bytes % elements == 0;
  // A page of no tokens is refused for that.
  if (!lacks_heads(to.layout) || !to.component.shapes.empty() || !known ||
      to.layout.page_tokens == 0 || (!is_kv(pool) && pool != KvPool::kSwa))
    return;
  const std::uint64_t row = std::uint64_t{to.layout.page_tokens} * (from.bytes / elements);
  if (to.bytes % row != 0 || to.bytes / row > wire::kMaxKvColumns) return;
  to.shape = {.rows = to.layout.page_tokens,
              .columns = static_cast<std::uint32_t>(to.bytes / row),
              .total_columns = from.shape.total_columns,
              .columns_first = to.layout.element_order == "hnd"};
}

/// Fills the component maps of one plan; collects what can't be mapped.
class Planner {
 public:
  /// `here` and `source` say the same; only `here` knows addresses.
  Planner(const KvLayout& here, const wire::KvLayout& source, const wire::KvLayout& destination)
      : here_(here), source_(source), destination_(destination) {}

  std::vector<ComponentMap> run();
  [[nodiscard]] const Differences& differences() const { return differences_; }

 private:
  void compare_layouts();
  void compare_page_sizes();
  void fit_pages(ComponentMap& map) const;
  void map_component(std::uint32_t index, const ComponentPair& pair, ComponentMap& map);
  /// False when the buffers can't be mapped.
  bool map_buffer(const End& from, const End& to, ComponentMap& map, std::uint64_t& covered);
  bool map_columns(const End& from, const End& to, ComponentMap& map, std::uint64_t& covered);
  void map_fields(const KvComponent& from, const KvComponent& to,
                  const std::vector<FieldPair>& pairs, ComponentMap& map);
  [[nodiscard]] bool sends(const ComponentMap& map) const;
  [[nodiscard]] Rows rows_of(const End& to, const ComponentMap& map) const;
  [[nodiscard]] bool rows_fit(const End& from, const End& to, const ComponentMap& map,
                              Rows kind) const;
  [[nodiscard]] std::byte* base_of(const ComponentMap& map, const End& from) const {
    return static_cast<std::byte*>(
        here_.components[*map.source_component].buffers[from.buffer].base);
  }
  bool mismatch(const End& from, const End& to);

  const KvLayout& here_;
  const wire::KvLayout& source_;
  const wire::KvLayout& destination_;
  Differences differences_;
  PageFit fit_;                                // of kv pools, by the sizes of their pages
  std::optional<std::uint32_t> first_server_;  // unset: the ranks don't belong together
};

KvShare share_of(const wire::KvLayout& layout) {
  return static_cast<KvShare>(layout.share);
}

std::uint32_t total_heads(const wire::KvLayout& layout) {
  return layout.total_kv_heads != 0 ? layout.total_kv_heads : layout.kv_heads * layout.rank.tp_size;
}

bool undivided(const std::string& element_order) {
  return element_order != "nhd" && element_order != "hnd";
}

/// Among how many of its ranks decode deals out a kv page's tokens, which prefill has together.
std::uint32_t token_ranks_of(const KvRank& source, const KvRank& destination) {
  return source.dcp_size == destination.dcp_size ? 1 : destination.dcp_size;
}

/// Pages of different sizes go together if the inside of both is known.
void Planner::compare_page_sizes() {
  const std::uint32_t here = source_.page_tokens;
  const std::uint32_t there = destination_.page_tokens;
  const bool known = !undivided(source_.element_order) && !undivided(destination_.element_order);
  if (here == 0 || there == 0 || (here != there && !known))
    return differences_.compare("page_tokens", here, there);
  const PageFit fit =
      PageFit::of(here, std::uint64_t{there} * token_ranks_of(source_.rank, destination_.rank));
  // Each plan has a table of the steps; real sizes make few.
  if (fit.join + std::uint64_t{fit.split} > wire::kMaxKvPageSteps)
    return differences_.add(
        fmt::format("page_tokens {} here, {} there (of {} ranks): more than {} steps until pages "
                    "of both begin together",
                    here, there, destination_.rank.dcp_size, wire::kMaxKvPageSteps));
  fit_ = fit;
}

void Planner::compare_layouts() {
  differences_.compare("layout version", source_.version, destination_.version);
  compare_page_sizes();
  if (!lacks_heads(destination_) || destination_.total_kv_heads != 0)
    differences_.compare("kv_heads of all ranks", total_heads(source_), total_heads(destination_));
  differences_.compare("head_dim", source_.head_dim, destination_.head_dim);
  if (undivided(source_.element_order) || undivided(destination_.element_order))
    differences_.compare("element_order", source_.element_order, destination_.element_order);
  const KvShare share = share_of(source_);
  if (const Status ranks = check_serves(source_.rank, share, destination_.rank); !ranks.is_ok()) {
    differences_.add(ranks.detail());
    return;
  }
  first_server_ =
      tensor_servers(source_.rank.tp_size, destination_.rank.tp_rank, destination_.rank.tp_size,
                     shared_among_tensor_ranks(share, source_.rank.cp_size))
          ->first;
}

/// Whether this rank is the one of its stage and context group that brings the component.
bool Planner::sends(const ComponentMap& map) const {
  const KvRank& rank = source_.rank;
  const bool by_layer =
      map.source_component && !source_.components[*map.source_component].layer_ids.empty();
  if (rank.pp_size != destination_.rank.pp_size && !by_layer && rank.pp_rank + 1 != rank.pp_size)
    return false;  // what every stage has is sent by the last
  if (rank.cp_rank == 0 || map.share.size > 1) return true;
  return share_of(source_) == KvShare::kLayers && by_layer;
}

std::vector<ComponentMap> Planner::run() {
  compare_layouts();
  std::vector<ComponentMap> out(destination_.components.size());
  const std::vector<ComponentPair> pairs = pair_components(source_, destination_, differences_);
  if (!first_server_) return out;
  for (std::uint32_t c = 0; c < out.size(); ++c) map_component(c, pairs[c], out[c]);
  return out;
}

void Planner::fit_pages(ComponentMap& map) const {
  map.fit = fit_;
  map.steps = PageSteps(fit_);
  map.token_ranks = token_ranks_of(source_.rank, destination_.rank);
  if (map.token_ranks > 1)
    map.dealt = dealt_rows(fit_, map.steps, source_.page_tokens,
                           {.page_tokens = destination_.page_tokens,
                            .rank = destination_.rank.dcp_rank,
                            .ranks = map.token_ranks});
  if (fit_ != PageFit{} || map.token_ranks > 1)
    map.prefix_unit = std::uint64_t{fit_.join} * source_.page_tokens;
  map.coverage.join = fit_.join;
  map.coverage.split = fit_.split;
}

void Planner::map_component(std::uint32_t index, const ComponentPair& pair, ComponentMap& map) {
  const KvComponent& to = destination_.components[index];
  map.pool = static_cast<KvPool>(to.kind);
  map.source_component = pair.source_component;
  map.destination_items = to.items;
  map.share = page_share(share_of(source_), source_.rank, map.pool);
  if (is_kv(map.pool)) fit_pages(map);
  map.coverage.divisor = map.share.size;
  map.coverage.token_ranks = map.token_ranks;
  map.coverage.bytes.resize(to.regions.size());
  if (!pair.source_component || !sends(map)) {
    map.coverage.bytes.clear();
    return;
  }
  if (!pair.fields.empty()) {
    map_fields(source_.components[*pair.source_component], to, pair.fields, map);
    return;
  }
  map.buffers.reserve(pair.buffers.size());
  for (const BufferPair& buffers : pair.buffers) {
    const End from(source_, source_.components[*pair.source_component], buffers.source);
    End into(destination_, to, buffers.destination);
    take_heads(from, into);
    if (from.bytes == 0 && into.bytes != 0) map.coverage.elided.push_back(buffers.destination);
    if (from.bytes == 0 || into.bytes == 0) continue;
    // The others say the same.
    if (!map_buffer(from, into, map, map.coverage.bytes[buffers.destination])) break;
  }
  std::ranges::sort(map.coverage.elided);
  // One number says it where all buffers are alike.
  const auto& bytes = map.coverage.bytes;
  if (std::ranges::all_of(bytes, [&](auto one) { return one == bytes[0]; }))
    map.coverage.bytes.resize(bytes[0] == 0 ? 0 : 1);
}

/// One map per field, or per run of fields that follow each other on both sides.
void Planner::map_fields(const KvComponent& from, const KvComponent& to,
                         const std::vector<FieldPair>& pairs, ComponentMap& map) {
  if (source_.rank.tp_rank != *first_server_) {  // the others' rows are copies
    map.coverage.bytes.clear();
    return;
  }
  std::vector<FieldPair> order = pairs;
  std::ranges::sort(order, {}, [&](const FieldPair& pair) {
    const KvField& field = to.fields[pair.destination];
    return std::pair(field.buffer, field.offset);
  });
  const KvField* last_source = nullptr;
  const KvField* last = nullptr;
  for (const FieldPair& pair : order) {
    const KvField& source = from.fields[pair.source];
    const KvField& field = to.fields[pair.destination];
    map.coverage.fields.push_back(pair.destination);
    map.coverage.bytes[field.buffer] += field.bytes;
    const bool follows = last != nullptr && last->buffer == field.buffer &&
                         last->offset + last->bytes == field.offset &&
                         last_source->buffer == source.buffer &&
                         last_source->offset + last_source->bytes == source.offset;
    last_source = &source;
    last = &field;
    if (follows) {
      map.buffers.back().length += field.bytes;
      continue;
    }
    const std::uint64_t base = to.base_offset.empty() ? 0 : to.base_offset[field.buffer];
    map.buffers.push_back(
        {.source = static_cast<std::byte*>(
                       here_.components[*map.source_component].buffers[source.buffer].base) +
                   source.offset,
         .source_item = item_len(from, source.buffer),
         .region = to.regions[field.buffer],
         .destination = base + field.offset,
         .destination_item = item_len(to, field.buffer),
         .length = field.bytes});
  }
  std::ranges::sort(map.coverage.fields);
}

bool Planner::mismatch(const End& from, const End& to) {
  const auto page = [](const End& end) {
    if (end.elements() == 1) return fmt::format("{}", end.bytes);
    return fmt::format("{} ({} rows x {} of {} columns)", end.bytes, end.shape.rows,
                       end.shape.columns, end.shape.total_columns);
  };
  if (is_kv(static_cast<KvPool>(to.component.kind)))
    differences_.compare("page_tokens", source_.page_tokens, destination_.page_tokens);
  differences_.add(fmt::format("{} item_len of buffer {} {} here, {} there",
                               kv_pool_name(static_cast<KvPool>(to.component.kind)), to.buffer,
                               page(from), page(to)));
  return false;
}

Rows Planner::rows_of(const End& to, const ComponentMap& map) const {
  if (map.token_ranks > 1 && to.shape.rows == destination_.page_tokens) return Rows::kDealt;
  return map.fit == PageFit{} ? Rows::kPage : Rows::kSteps;
}

/// Whether the rows of both sides' pages are what moves together.
bool Planner::rows_fit(const End& from, const End& to, const ComponentMap& map, Rows kind) const {
  if (kind == Rows::kPage) return from.shape.rows == to.shape.rows;
  // A row of a page that is taken apart must be a token, of this rank or of all of them.
  const auto counts_tokens = [](const End& end) {
    const std::uint64_t tokens = end.layout.page_tokens;
    return end.shape.rows == tokens || end.shape.rows == tokens * end.layout.rank.dcp_size;
  };
  if (!counts_tokens(from) || !counts_tokens(to)) return false;
  if (kind == Rows::kDealt) return from.shape.rows == source_.page_tokens;
  return std::uint64_t{from.shape.rows} * map.fit.join ==
         std::uint64_t{to.shape.rows} * map.fit.split;
}

bool Planner::map_buffer(const End& from, const End& to, ComponentMap& map,
                         std::uint64_t& covered) {
  const std::uint64_t destination =
      to.component.base_offset.empty() ? 0 : to.component.base_offset[to.buffer];
  // The only server of the destination, or the first of those that hold the same.
  const bool same_place = source_.rank.tp_size == destination_.rank.tp_size &&
                          source_.rank.tp_rank == destination_.rank.tp_rank &&
                          source_.rank.tp_rank == *first_server_;
  if (map.fit == PageFit{} && same_place && from.shape == to.shape && from.bytes == to.bytes) {
    map.buffers.push_back({.source = base_of(map, from),
                           .source_item = from.bytes,
                           .region = to.component.regions[to.buffer],
                           .destination = destination,
                           .destination_item = to.bytes,
                           .length = from.bytes});
    covered = to.bytes;
    return true;
  }
  return map_columns(from, to, map, covered);
}

bool Planner::map_columns(const End& from, const End& to, ComponentMap& map,
                          std::uint64_t& covered) {
  const auto here = segments_of(from.shape, source_.rank.tp_rank, source_.rank.tp_size);
  const auto there = segments_of(to.shape, destination_.rank.tp_rank, destination_.rank.tp_size);
  const Rows kind = rows_of(to, map);
  if (!here || !there || !rows_fit(from, to, map, kind) ||
      from.shape.total_columns != to.shape.total_columns || from.shape.groups != to.shape.groups ||
      from.elements() == 0 || to.elements() == 0 || from.bytes % from.elements() != 0 ||
      to.bytes % to.elements() != 0 || from.bytes / from.elements() != to.bytes / to.elements() ||
      (from.shape.total_columns == 0 && from.shape.columns != to.shape.columns))
    return mismatch(from, to);
  const std::uint64_t unit = from.bytes / from.elements();
  const Steps out = steps_of(from.shape, unit);
  const Steps in = steps_of(to.shape, unit);
  const std::uint64_t base =
      to.component.base_offset.empty() ? 0 : to.component.base_offset[to.buffer];
  // Pages that are dealt out among tensor ranks are each one's own: nothing to elect.
  const bool own = map.share.size > 1 && source_.rank.cp_size == 1;
  const std::uint32_t first = own ? source_.rank.tp_rank : *first_server_;
  for (const SharedColumns& shared : shared_columns(*here, *there, source_.rank.tp_rank, first)) {
    BufferMap buffer{
        .source = base_of(map, from) + shared.source * out.column,
        .source_item = from.bytes,
        .region = to.component.regions[to.buffer],
        .destination = base + shared.destination * in.column,
        .destination_item = to.bytes,
        .length = unit,
        .columns = {.count = shared.count, .source = out.column, .destination = in.column},
        .rows = {.count = to.shape.rows, .source = out.row, .destination = in.row},
        .kind = kind,
        .source_row = out.row,
        .unit_rows = kind == Rows::kSteps ? from.shape.rows / map.fit.split : 1};
    if (kind == Rows::kDealt) buffer.rows.source *= map.token_ranks;
    buffer.fold();
    map.buffers.push_back(buffer);
    covered += shared.count * unit * to.shape.rows;
  }
  return true;
}

}  // namespace

Result<TransferPlan> TransferPlan::prepare(const KvLayout& here, const wire::KvLayout& there) {
  const wire::KvLayout source = describe(here, {});
  Planner planner(here, source, there);
  TransferPlan plan;
  plan.components_ = planner.run();
  KVM_RETURN_IF_ERROR(planner.differences().status());
  return plan;
}

std::vector<PageRun> TransferPlan::runs(std::uint32_t component, const ChunkPages& chunk) const {
  const ComponentMap& map = components_[component];
  return chunk_runs(chunk, map.share, map.fit, map.steps);
}

Amount TransferPlan::amount(std::uint32_t component, std::span<const PageRun> runs) const {
  const ComponentMap& map = components_[component];
  Amount sum;
  for (const BufferMap& buffer : map.buffers)
    sum += amount_of(buffer, runs, {map.steps.all(), map.dealt});
  return sum;
}

void TransferPlan::append(std::uint32_t component, std::span<const PageRun> runs,
                          std::vector<transport::Piece>& out) const {
  const ComponentMap& map = components_[component];
  for (const BufferMap& buffer : map.buffers)
    append_pieces(buffer, runs, {map.steps.all(), map.dealt}, out);
}

}  // namespace kvmend::kv
