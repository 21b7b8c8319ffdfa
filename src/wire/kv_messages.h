// Messages between KV managers as plain values; they travel as the body of `Upper`. Pure; any
// thread. Errors of parsing: kProtocolError, origin peer.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/bytes.h"
#include "kvmend/ids.h"
#include "kvmend/kv_layout.h"
#include "kvmend/status.h"

namespace kvmend::wire {

/// `Upper::kind` of everything in this file.
inline constexpr std::uint32_t kUpperKv = 1;

inline constexpr std::size_t kMaxKvComponents = 32;
inline constexpr std::size_t kMaxKvBuffers = 4096;  // per component
inline constexpr std::size_t kMaxKvShapes = 16;     // per component
inline constexpr std::size_t kMaxKvGroups = 16;     // per shape
inline constexpr std::size_t kMaxKvFields = 256;    // per component
inline constexpr std::size_t kMaxKvFieldNameBytes = 64;
/// Rises when the same fields come to mean another mapping.
inline constexpr std::uint32_t kKvLayoutVersion = 1;
inline constexpr std::uint32_t kMaxKvColumns = 1U << 20;  // of all ranks; rows as well
inline constexpr std::uint32_t kMaxKvRanks = 1U << 16;    // of each kind of parallelism
// Pages of both sides until they begin together again: what a plan's table of steps is bounded by.
inline constexpr std::uint32_t kMaxKvPageSteps = 4'096;
inline constexpr std::size_t kMaxKvPages =
    1'000'000;  // per component; a message holds 4 MiB in all
inline constexpr std::size_t kMaxKvDtypeBytes = 32;
inline constexpr std::size_t kMaxKvElementOrderBytes = 16;
inline constexpr std::size_t kMaxKvReasonBytes = 512;
inline constexpr std::size_t kMaxKvDataSessionBytes = 256;
inline constexpr std::uint32_t kMaxKvDestinations = 256;  // decode engines of one room and writer
inline constexpr std::chrono::milliseconds kMaxKvGrantLifetime = std::chrono::hours{24 * 7};
inline constexpr std::uint32_t kMaxRoomStatus = 4;
inline constexpr std::uint64_t kMaxRoomId = (std::uint64_t{1} << 63) - 1;

struct KvComponent {
  std::uint32_t kind = 0;                ///< 0 kv, 1 aux, 2.. state types
  std::vector<RegionRef> regions;        ///< one per buffer, in layer order; 0 where elided
  std::vector<std::uint64_t> item_len;   ///< bytes of a page: one value for all buffers or one each
  std::uint64_t items = 0;               ///< pages in each buffer
  std::vector<std::uint32_t> layer_ids;  ///< one per buffer, or none
  std::string dtype;
  std::vector<std::uint64_t> base_offset;  ///< of page 0: one per buffer, or none
  std::vector<KvShape> shapes;
  std::vector<std::uint32_t> shape_of;  ///< below shapes.size(): one per buffer, or none (0)
  std::vector<std::uint32_t> optional;  ///< buffers that needn't be written: sorted, unique
  std::uint32_t memory = 0;             ///< MemoryKind
  std::vector<KvField> fields;          ///< `bytes` isn't 0; each inside its buffer's item
  std::uint32_t fields_version = 0;
  friend bool operator==(const KvComponent&, const KvComponent&) = default;
};

struct KvLayout {
  std::uint32_t page_tokens = 0;
  std::uint32_t kv_heads = 0;
  std::uint32_t head_dim = 0;
  std::string element_order;  ///< "nhd", "hnd", "opaque"
  KvRank rank;                ///< every size at least 1 and above its rank
  std::vector<KvComponent> components;
  std::uint32_t total_kv_heads = 0;
  std::uint32_t share = 0;    ///< KvShare
  std::uint32_t version = 0;  ///< see kKvLayoutVersion
  friend bool operator==(const KvLayout&, const KvLayout&) = default;
};

/// Decode -> prefill, once per engine pair.
struct KvRegister {
  std::uint64_t registration = 0;
  KvLayout layout;
  std::string
      data_session;  ///< of the foreign engine that moves the pages; "": kvmend's moves them
  friend bool operator==(const KvRegister&, const KvRegister&) = default;
};

/// What a prefill rank writes of one component of decode's layout.
struct KvCoverage {
  std::vector<std::uint64_t> bytes;   ///< of a page: none, one value for all buffers or one each
  std::vector<std::uint32_t> elided;  ///< buffers that are empty at prefill: sorted, unique
  std::uint32_t divisor = 1;          ///< that many ranks share the pages among them; at least 1
  std::uint32_t token_ranks = 1;      ///< that many of decode's ranks share a page's tokens
  std::vector<std::uint32_t> fields;  ///< of decode's, that it brings: sorted, unique
  std::uint32_t join = 1;             ///< so many of prefill's pages hold as many tokens as
  std::uint32_t split = 1;            ///< so many of decode's (of all `token_ranks`)
  friend bool operator==(const KvCoverage&, const KvCoverage&) = default;
};

struct KvRegisterReply {
  std::uint64_t registration = 0;
  Code code = Code::kOk;
  std::string detail;
  std::vector<KvCoverage> coverage;  ///< one per component of decode's layout; none on refusal
  friend bool operator==(const KvRegisterReply&, const KvRegisterReply&) = default;
};

struct KvPages {
  std::uint32_t component = 0;       ///< index into KvLayout::components, below kMaxKvComponents
  std::vector<std::uint32_t> pages;  ///< in the order of the tokens, not sorted
  friend bool operator==(const KvPages&, const KvPages&) = default;
};

/// Decode -> prefill: the pages of one room and the grant that opens them.
struct KvRoomMetadata {
  RoomId room;
  std::uint32_t attempt = 0;
  GrantId grant;  ///< of its own: never the standing one; a dummy has none
  std::chrono::milliseconds expires_in{0};  ///< remaining, by the grantor's clock
  std::vector<KvPages> pages;               ///< each component at most once
  std::uint64_t prefix_tokens = 0;
  std::uint32_t required_destinations = 1;  ///< decode engines that this writer serves in the room
  bool dummy = false;                       ///< takes nothing from this writer: no grant, no pages
  friend bool operator==(const KvRoomMetadata&, const KvRoomMetadata&) = default;
};

/// Prefill -> decode: every byte that this writer declared has been acknowledged.
struct KvRoomDone {
  RoomId room;
  std::uint32_t attempt = 0;
  GrantId grant;
  std::vector<std::uint64_t> declared_bytes;  ///< per component of the receiver's layout
  std::uint32_t declared_pages = 0;
  friend bool operator==(const KvRoomDone&, const KvRoomDone&) = default;
};

struct KvRoomStatus {
  RoomId room;
  std::uint32_t attempt = 0;
  std::uint32_t status = 0;  ///< Failed 0 .. Success 4
  Code code = Code::kOk;
  std::string reason;
  std::uint32_t rank = 0;
  GrantId grant;
  friend bool operator==(const KvRoomStatus&, const KvRoomStatus&) = default;
};

struct KvRoomAbort {
  RoomId room;
  std::uint32_t attempt = 0;
  Code code = Code::kAborted;
  std::string reason;
  std::uint32_t rank = 0;
  friend bool operator==(const KvRoomAbort&, const KvRoomAbort&) = default;
};

struct KvRoomAbortAck {
  RoomId room;
  std::uint32_t attempt = 0;
  std::uint32_t rank = 0;
  bool undrained = false;  ///< writes of the room that failed may still be under way
  friend bool operator==(const KvRoomAbortAck&, const KvRoomAbortAck&) = default;
};

using KvMessage = std::variant<KvRegister, KvRegisterReply, KvRoomMetadata, KvRoomDone,
                               KvRoomStatus, KvRoomAbort, KvRoomAbortAck>;

/// The body of an `Upper`. Text is cut and cleaned; the other caps and the room id's range are the
/// caller's to keep (KVM_CHECK).
[[nodiscard]] std::string encode_kv(const KvMessage& message);
[[nodiscard]] Result<KvMessage> parse_kv(Bytes body);

}  // namespace kvmend::wire
