#include "kv/buffer_map.h"

#include <utility>

namespace kvmend::kv {
namespace {

bool fold_into(std::uint64_t& length, Stride& stride) {
  if (stride.count == 1 || stride.source != length || stride.destination != length) return false;
  length *= stride.count;
  stride = {};
  return true;
}

/// What moves of one page: where it starts on both sides, and its strips.
struct Strips {
  std::uint64_t source = 0;
  std::uint64_t destination = 0;
  std::uint64_t length = 0;
  std::uint32_t columns = 1;
  std::uint32_t rows = 1;
  [[nodiscard]] std::size_t pieces() const { return std::size_t{columns} * rows; }
};

Strips strips_of(const BufferMap& map, std::uint32_t step, const StepTables& tables) {
  Strips out{.length = map.length, .columns = map.columns.count, .rows = map.rows.count};
  if (map.kind == Rows::kPage) return out;
  RowSpan rows;
  if (map.kind == Rows::kDealt) {
    rows = tables.dealt[step];
  } else {
    const PageStep& units = tables.steps[step];
    rows = {.source = units.source * map.unit_rows,
            .destination = units.destination * map.unit_rows,
            .count = units.count * map.unit_rows};
  }
  out.source = rows.source * map.source_row;
  out.destination = rows.destination * map.rows.destination;
  out.rows = rows.count;
  // How many rows there are is known only here, so this is where they are joined.
  Stride all = map.rows;
  all.count = rows.count;
  if (!fold_into(out.length, all)) return out;
  out.rows = 1;
  Stride columns = map.columns;
  if (fold_into(out.length, columns)) out.columns = 1;
  return out;
}

void append_strips(const BufferMap& map, const Strips& strips, std::byte* local,
                   std::uint64_t offset, std::vector<transport::Piece>& out) {
  for (std::uint32_t column = 0; column < strips.columns; ++column) {
    std::byte* from = local + column * map.columns.source;
    std::uint64_t to = offset + column * map.columns.destination;
    for (std::uint32_t row = 0; row < strips.rows; ++row) {
      out.push_back({.local = from, .region = map.region, .offset = to, .length = strips.length});
      from += map.rows.source;
      to += map.rows.destination;
    }
  }
}

}  // namespace

std::vector<RowSpan> dealt_rows(const PageFit& fit, const PageSteps& steps,
                                std::uint32_t source_tokens, const Dealing& dealing) {
  const std::uint64_t ranks = dealing.ranks;
  const std::uint32_t unit = source_tokens / fit.split;
  std::vector<RowSpan> out(steps.all().size());
  for (std::uint32_t i = 0; i < out.size(); ++i) {
    const PageStep& step = steps.all()[i];
    const std::uint32_t first = step.source * unit;
    // The step's tokens, counted from where pages of both sides begin together.
    const std::uint64_t begin = std::uint64_t{steps.source_page(i)} * source_tokens + first;
    const auto skip = static_cast<std::uint32_t>((dealing.rank + ranks - begin % ranks) % ranks);
    const std::uint32_t tokens = step.count * unit;
    if (skip >= tokens) continue;
    const std::uint64_t page = std::uint64_t{step.page} * dealing.page_tokens;
    out[i] = {.source = first + skip,
              .destination = static_cast<std::uint32_t>((begin + skip) / ranks - page),
              .count = static_cast<std::uint32_t>((tokens - skip + ranks - 1) / ranks)};
  }
  return out;
}

void BufferMap::fold() {
  // Rows of steps are joined page by page.
  const bool whole_rows = kind == Rows::kPage;
  if (whole_rows && fold_into(length, rows)) fold_into(length, columns);
  if (fold_into(length, columns) && whole_rows) fold_into(length, rows);
}

Amount amount_of(const BufferMap& map, std::span<const PageRun> runs, const StepTables& tables) {
  Amount sum;
  if (map.kind == Rows::kPage) {
    std::uint64_t pages = 0;
    for (const PageRun& run : runs) pages += run.count;
    const Strips strips = strips_of(map, 0, tables);
    sum = {.pieces = map.whole_pages() ? runs.size() : strips.pieces() * pages,
           .bytes = strips.pieces() * pages * strips.length};
    return sum;
  }
  for (const PageRun& run : runs) {
    const Strips strips = strips_of(map, run.step, tables);
    const std::size_t pieces = strips.pieces() * run.count;
    sum += {.pieces = pieces, .bytes = pieces * strips.length};
  }
  return sum;
}

void append_pieces(const BufferMap& map, std::span<const PageRun> runs, const StepTables& tables,
                   std::vector<transport::Piece>& out) {
  if (map.whole_pages()) {
    // The common case, kept free of anything else.
    for (const PageRun& run : runs)
      out.push_back({.local = map.source + run.source * map.source_item,
                     .region = map.region,
                     .offset = map.destination + run.destination * map.destination_item,
                     .length = run.count * map.length});
    return;
  }
  for (const PageRun& run : runs) {
    const Strips strips = strips_of(map, run.step, tables);
    std::byte* local = map.source + run.source * map.source_item + strips.source;
    std::uint64_t offset =
        map.destination + run.destination * map.destination_item + strips.destination;
    for (std::uint32_t page = 0; page < run.count; ++page) {
      append_strips(map, strips, local, offset, out);
      local += map.source_item;
      offset += map.destination_item;
    }
  }
}

}  // namespace kvmend::kv
