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
#include "kvmend/status.h"

namespace kvmend::wire {

/// `Upper::kind` of everything in this file.
inline constexpr std::uint32_t kUpperKv = 1;

inline constexpr std::size_t kMaxKvComponents = 32;
inline constexpr std::size_t kMaxKvBuffers = 4096;  // per component
inline constexpr std::size_t kMaxKvPages =
    1'000'000;  // per component; a message holds 4 MiB in all
inline constexpr std::size_t kMaxKvDtypeBytes = 32;
inline constexpr std::size_t kMaxKvElementOrderBytes = 16;
inline constexpr std::size_t kMaxKvReasonBytes = 512;
inline constexpr std::uint32_t kMaxKvDestinations = 256;  // decode engines of one room and writer
inline constexpr std::chrono::milliseconds kMaxKvGrantLifetime = std::chrono::hours{24 * 7};
inline constexpr std::uint32_t kMaxRoomStatus = 4;
inline constexpr std::uint64_t kMaxRoomId = (std::uint64_t{1} << 63) - 1;

struct KvComponent {
  std::uint32_t kind = 0;                ///< 0 kv, 1 aux, 2.. state types
  std::vector<RegionRef> regions;        ///< one per buffer, in layer order
  std::vector<std::uint64_t> item_len;   ///< bytes of a page: one value for all buffers or one each
  std::uint64_t items = 0;               ///< pages in each buffer
  std::vector<std::uint32_t> layer_ids;  ///< one per buffer, or none
  std::string dtype;
  std::vector<std::uint64_t> base_offset;  ///< of page 0: one per buffer, or none
  friend bool operator==(const KvComponent&, const KvComponent&) = default;
};

struct KvLayout {
  std::uint32_t page_tokens = 0;
  std::uint32_t kv_heads = 0;
  std::uint32_t head_dim = 0;
  std::string element_order;  ///< "nhd", "hnd", "opaque"
  std::uint32_t tp_rank = 0;
  std::uint32_t tp_size = 0;
  std::uint32_t pp_rank = 0;
  std::uint32_t pp_size = 0;
  std::uint32_t dp_rank = 0;
  std::uint32_t dp_size = 0;
  std::uint32_t cp_rank = 0;
  std::uint32_t cp_size = 0;
  std::vector<KvComponent> components;
  friend bool operator==(const KvLayout&, const KvLayout&) = default;
};

/// Decode -> prefill, once per engine pair.
struct KvRegister {
  std::uint64_t registration = 0;
  KvLayout layout;
  friend bool operator==(const KvRegister&, const KvRegister&) = default;
};

struct KvRegisterReply {
  std::uint64_t registration = 0;
  Code code = Code::kOk;
  std::string detail;
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
  std::uint32_t required_writers = 0;
  std::uint32_t decode_rank = 0;
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
  std::uint32_t writer_rank = 0;
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
  friend bool operator==(const KvRoomAbortAck&, const KvRoomAbortAck&) = default;
};

using KvMessage = std::variant<KvRegister, KvRegisterReply, KvRoomMetadata, KvRoomDone,
                               KvRoomStatus, KvRoomAbort, KvRoomAbortAck>;

/// The body of an `Upper`. Text is cut and cleaned; the other caps and the room id's range are the
/// caller's to keep (KVM_CHECK).
[[nodiscard]] std::string encode_kv(const KvMessage& message);
[[nodiscard]] Result<KvMessage> parse_kv(Bytes body);

}  // namespace kvmend::wire
