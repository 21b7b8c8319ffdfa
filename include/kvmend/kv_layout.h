// What a rank's pools look like: described once, exchanged when two managers meet, and the ground
// on which they work out which byte goes where (docs/kv-layouts.md).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvmend/memory.h"

namespace kvmend {

/// What a pool holds. The numbers travel on the wire: append only.
enum class KvPool : std::uint32_t {
  kKv = 0,
  kAux = 1,
  kMamba = 2,
  kQsaPending = 3,
  kQsaCompressed = 4,
  kSwa = 5,
  kDsa = 6,
  kDsaTail = 7,
  kMinimaxIndexK = 8,
  kMinimaxDenseKv = 9,
  kSwaRing = 10,
  kC128State = 11,
  kRequestRow = 12,
  kBlockScale = 13,
  kBlockScaleSwa = 14,
  /// Decode: layers of the KV cache with page numbers of their own, e.g. draft layers on the device
  /// while the other layers' pages lie in host memory. Filled from prefill's kKv by layer id.
  kKvDevice = 15,
};
[[nodiscard]] std::string_view kv_pool_name(KvPool pool);
/// Whether the pool is filled chunk by chunk; the others come with the last chunk.
[[nodiscard]] constexpr bool is_kv(KvPool pool) {
  return pool == KvPool::kKv || pool == KvPool::kKvDevice;
}
/// Whether the pool has a list in KvStateIndices.
[[nodiscard]] constexpr bool is_state(KvPool pool) {
  return !is_kv(pool) && pool != KvPool::kAux;
}

/// What the bytes of one page mean: a matrix of elements of equal size (the page's bytes / rows /
/// columns). Tensor parallelism divides columns, decode context parallelism rows of KV pages.
struct KvShape {
  std::uint32_t rows = 1;           ///< tokens of a KV page; the outer dimension of a state
  std::uint32_t columns = 1;        ///< heads or channels of this rank
  std::uint32_t total_columns = 0;  ///< of all tp ranks; 0: not divided, all hold the same bytes
  bool columns_first = false;       ///< [column][row][element] ("hnd") in place of [row][column]
  /// Columns of blocks that stand one after the other and are divided each for itself (query, key
  /// and value of a convolution state): over all ranks, in sum `total_columns`. Empty: one block.
  std::vector<std::uint32_t> groups;
  friend bool operator==(const KvShape&, const KvShape&) = default;
};

/// One array of `items` (see KvComponent) pages of `item_len` bytes, page 0 at `base`.
struct KvBuffer {
  void* base = nullptr;
  std::uint64_t item_len = 0;  ///< 0: elided, nothing moves for it (`base` is ignored)
  std::uint32_t shape = 0;     ///< index into KvComponent::shapes
  bool optional = false;       ///< decode: needn't be written (draft layers that prefill may lack)
};

/// A named part of each row of the aux pool, so that sides whose rows have other fields, or other
/// places for them, understand each other: what both name moves, by name.
struct KvField {
  std::string name;          ///< 1 to 64 bytes, unique in its component
  std::uint32_t buffer = 0;  ///< index into KvComponent::buffers
  std::uint64_t offset = 0;  ///< in the row
  std::uint64_t bytes = 0;   ///< 0: up to the end of the row
  std::string dtype;         ///< compared as text; at most 32 bytes
  bool required = false;     ///< a peer without it is refused
  friend bool operator==(const KvField&, const KvField&) = default;
};

/// Buffers that share their page indices: usually K and V of every layer.
struct KvComponent {
  KvPool pool = KvPool::kKv;
  std::string dtype;              ///< "bfloat16", ...; compared as text; at most 32 bytes
  std::uint64_t items = 0;        ///< pages in each buffer
  std::vector<KvBuffer> buffers;  ///< 1 to 4,096
  /// The model's layer of each buffer, or none. Ids may repeat (K and V): the n-th buffer of a
  /// layer here is the n-th there. Needed where the sides don't have the same layers.
  std::vector<std::uint32_t> layer_ids;
  MemoryKind kind = MemoryKind::kHost;
  /// At most 16. None: KV and sliding-window pools are page_tokens x kv_heads in the layout's
  /// element order; other pools aren't divided.
  std::vector<KvShape> shapes;
  /// Aux only: at most 256 fields, none over another; bytes of no field never move. None: buffers
  /// pair by position, and both sides need the same ones. Either both sides name fields or neither.
  std::vector<KvField> fields;
  /// Of the fields' meaning: sides with different versions refuse each other.
  std::uint32_t fields_version = 1;
};

/// Coordinates of a rank. tp is the attention's tensor parallelism, as SGLang counts it.
struct KvRank {
  std::uint32_t tp_rank = 0;
  std::uint32_t tp_size = 1;
  std::uint32_t pp_rank = 0;
  std::uint32_t pp_size = 1;
  std::uint32_t dp_rank = 0;
  std::uint32_t dp_size = 1;
  std::uint32_t cp_rank = 0;
  std::uint32_t cp_size = 1;
  std::uint32_t dcp_rank = 0;  ///< decode context parallelism: holds tokens t with t % size == rank
  std::uint32_t dcp_size = 1;
  friend bool operator==(const KvRank&, const KvRank&) = default;
};

/// Prefill: what each of the ranks brings that hold the same heads. Travels on the wire.
enum class KvShare : std::uint32_t {
  kLeader = 0,  ///< context rank 0 brings everything, the others nothing
  kLayers = 1,  ///< each context rank brings the layers that its layout lists
  kRanges = 2,  ///< each context rank brings its contiguous part of a room's pages
  /// Pages are dealt out: logical page l lies on rank l % n as local page l / n. n: the context
  /// ranks, or without context parallelism the tensor ranks. Page numbers of `send` are logical.
  kInterleaved = 3,
};
[[nodiscard]] std::string_view kv_share_name(KvShare share);

/// A rank's pools. Exactly one component of kind kKv, at most one kAux and one kKvDevice, any
/// number of state pools (their order is the order of the state indices); at most 32 in all.
struct KvLayout {
  std::uint32_t page_tokens = 0;  ///< tokens per page of the kKv component
  std::uint32_t kv_heads = 0;  ///< of this rank; 0, not known: prefill divides no pages, decode's
  std::uint32_t head_dim = 0;  ///< are divided by prefill's heads, if their bytes come to that
  std::string element_order = "nhd";  ///< "nhd", "hnd", "opaque" (pages aren't divided)
  KvRank rank;
  std::vector<KvComponent> components;
  /// Of the model; 0: kv_heads * tp_size. Fewer than tp_size: ranks that follow each other hold the
  /// same head. 1 for MLA, where all ranks hold the same.
  std::uint32_t total_kv_heads = 0;
  KvShare share = KvShare::kLeader;
};

}  // namespace kvmend
