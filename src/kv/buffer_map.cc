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

/// Where a page starts on both sides, and the rows of it that move.
struct Start {
  std::byte* local;
  std::uint64_t offset;
  std::uint32_t rows;
};

Start start_of(const BufferMap& map, const PageRun& run, std::span<const DealtRows> phases) {
  Start at{.local = map.source + run.source * map.source_item,
           .offset = map.destination + run.destination * map.destination_item,
           .rows = map.rows.count};
  switch (map.kind) {
    case Rows::kPage:
      break;
    case Rows::kDealt: {
      const DealtRows& rows = phases[run.phase];
      // A row's step at the source skips the other ranks' tokens already.
      at.local += rows.source * (map.rows.source / phases.size());
      at.offset += rows.destination * map.rows.destination;
      at.rows = rows.count;
      break;
    }
    case Rows::kJoined:
      at.offset += run.phase * map.phase;
      break;
    case Rows::kSplit:
      at.local += run.phase * map.phase;
      break;
  }
  return at;
}

void append_strips(const BufferMap& map, Start at, std::vector<transport::Piece>& out) {
  for (std::uint32_t column = 0; column < map.columns.count; ++column) {
    std::byte* local = at.local;
    std::uint64_t offset = at.offset;
    for (std::uint32_t row = 0; row < at.rows; ++row) {
      out.push_back({.local = local, .region = map.region, .offset = offset, .length = map.length});
      local += map.rows.source;
      offset += map.rows.destination;
    }
    at.local += map.columns.source;
    at.offset += map.columns.destination;
  }
}

}  // namespace

DealtRows dealt_rows(std::uint32_t tokens, std::uint32_t rank, std::uint32_t ranks,
                     std::uint32_t phase) {
  // Only the position within the virtual page of tokens * ranks tokens counts.
  const std::uint64_t start = std::uint64_t{phase} * tokens;
  const auto skip = static_cast<std::uint32_t>((rank + ranks - start % ranks) % ranks);
  if (skip >= tokens) return {};
  return {.source = skip,
          .destination = static_cast<std::uint32_t>((start + skip) / ranks),
          .count = (tokens - skip + ranks - 1) / ranks};
}

void BufferMap::fold() {
  // Dealt rows touch at the source only when they aren't dealt at all.
  const bool rows_fixed = kind == Rows::kDealt;
  if (!rows_fixed && fold_into(length, rows)) fold_into(length, columns);
  if (fold_into(length, columns) && !rows_fixed) fold_into(length, rows);
}

Amount amount_of(const BufferMap& map, std::span<const PageRun> runs,
                 std::span<const DealtRows> phases) {
  std::uint64_t strips = 0;
  if (map.kind == Rows::kDealt) {
    for (const PageRun& run : runs) strips += phases[run.phase].count;
  } else {
    for (const PageRun& run : runs) strips += run.count;
    strips *= map.rows.count;
  }
  strips *= map.columns.count;
  return {.pieces = map.whole_pages() ? runs.size() : static_cast<std::size_t>(strips),
          .bytes = strips * map.length};
}

void append_pieces(const BufferMap& map, std::span<const PageRun> runs,
                   std::span<const DealtRows> phases, std::vector<transport::Piece>& out) {
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
    Start at = start_of(map, run, phases);
    for (std::uint32_t page = 0; page < run.count; ++page) {
      append_strips(map, at, out);
      at.local += map.source_item;
      at.offset += map.destination_item;
    }
  }
}

}  // namespace kvmend::kv
