// A peer's layout against several of ours: whatever it says is refused, or mapped within both
// pools.
#include "kv/plan.h"

#include <array>
#include <cstdint>
#include <vector>

#include "fuzz.h"
#include "kv/layout.h"

using namespace kvmend;
using namespace kvmend::kv;

namespace {

constexpr std::uint32_t kItems = 8;

/// By the input's first byte: tensor rank and share, with a pool that is divided in groups.
KvLayout ours(std::uint8_t choice) {
  static std::array<std::byte, std::size_t{kItems} * 4'096> memory;
  const std::uint32_t tp_size = 1U << (choice & 3U);
  KvLayout layout{.page_tokens = 4,
                  .kv_heads = std::max(1U, 4 / tp_size),
                  .head_dim = 8,
                  .element_order = (choice & 4U) != 0 ? "hnd" : "nhd",
                  .rank = {.tp_rank = (choice >> 4) % tp_size, .tp_size = tp_size},
                  .total_kv_heads = 4,
                  .share = (choice & 8U) != 0 ? KvShare::kInterleaved : KvShare::kLeader};
  const std::uint64_t item = 4ULL * layout.kv_heads * 16;
  const std::uint32_t channels = 16 / tp_size;
  layout.components = {
      {.items = kItems,
       .buffers = {{memory.data(), item}, {memory.data(), item}, {nullptr, 0}},
       .layer_ids = {0, 1, 2}},
      {.pool = KvPool::kAux, .items = kItems, .buffers = {{memory.data(), 24}}},
      {.pool = KvPool::kMamba,
       .items = kItems,
       .buffers = {{memory.data(), 3ULL * channels * 2}},
       .layer_ids = {1},
       .shapes = {{.rows = 3, .columns = channels, .total_columns = 16, .groups = {8, 8}}}}};
  if ((choice & 128U) != 0)
    layout.components[1].fields = {{.name = "a", .bytes = 4}, {.name = "b", .offset = 6}};
  KVM_CHECK(check_layout(layout).is_ok());
  return layout;
}

void check_piece(const transport::Piece& piece, const wire::KvComponent& to) {
  for (std::size_t i = 0; i < to.regions.size(); ++i) {
    const std::uint64_t base = to.base_offset.empty() ? 0 : to.base_offset[i];
    const std::uint64_t end = base + to.items * item_len(to, i);
    if (to.regions[i] == piece.region && piece.offset >= base && piece.length <= end &&
        piece.offset <= end - piece.length)
      return;
  }
  KVM_CHECK(false, "a piece beyond the peer's pool");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const KvLayout here = ours(data[0]);
  const auto message = wire::parse_kv(fuzz::bytes(data + 1, size - 1));
  if (!message || !std::holds_alternative<wire::KvRegister>(*message)) return 0;
  const wire::KvLayout& there = std::get<wire::KvRegister>(*message).layout;
  if (!check_remote(there).is_ok()) return 0;
  const auto plan = TransferPlan::prepare(here, there);
  if (!plan) {
    KVM_CHECK(plan.error().code() == Code::kIncompatible);
    return 0;
  }
  const std::array<std::uint32_t, 5> source{1, 2, 5, 0, 4};
  for (std::uint32_t c = 0; c < plan->components().size(); ++c) {
    const ComponentMap& map = plan->components()[c];
    const std::size_t needed = map.destination_pages(source.size());
    if (map.buffers.empty() || map.destination_items < needed || needed > 10'000) continue;
    std::vector<std::uint32_t> destination;
    for (std::uint32_t page = 0; page < needed; ++page)
      destination.push_back(static_cast<std::uint32_t>(map.destination_items - 1 - page));
    const auto runs = plan->runs(c, {.source = source, .destination = destination, .total = 5});
    const Amount amount = plan->amount(c, runs);
    if (amount.pieces > 100'000) continue;
    std::vector<transport::Piece> pieces;
    plan->append(c, runs, pieces);
    KVM_CHECK(pieces.size() == amount.pieces);
    for (const transport::Piece& piece : pieces) check_piece(piece, there.components[c]);
  }
  return 0;
}
