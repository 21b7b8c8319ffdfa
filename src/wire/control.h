// Handshake and control messages as plain values. The only code, with kv_messages.cc, that touches
// generated classes. Pure; any thread.
//
// `parse_*` enforce every cap that control.proto names; their errors are kProtocolError, origin
// peer. `encode_*` cut and clean human text, and KVM_CHECK caps that the caller must keep.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/bytes.h"
#include "kvmend/ids.h"
#include "kvmend/memory.h"
#include "kvmend/status.h"

namespace kvmend::wire {

inline constexpr std::uint32_t kVersionMin = 1;
inline constexpr std::uint32_t kVersionMax = 1;

inline constexpr std::size_t kMaxSessionIdBytes = 64;
inline constexpr std::size_t kMaxAuthBytes = 1024;
inline constexpr std::size_t kMaxLocalAddressBytes = 107;
inline constexpr std::size_t kMaxReasonBytes = 256;
inline constexpr std::size_t kMaxRegionsPerMessage = 4096;
inline constexpr std::size_t kMaxNotifyNameBytes = 1024;
inline constexpr std::size_t kMaxNotifyBytes = 1U << 20;
inline constexpr std::size_t kMaxUpperBytes = (4U << 20) - 64;  // kMaxControlBytes with its framing
inline constexpr std::uint32_t kMaxScratchBytes = 1U << 20;

/// Admits a lane to an epoch.
using Token = std::array<std::byte, 16>;

enum class LaneKind : std::uint8_t {
  kControl = 0,  ///< without a token it opens an epoch, with one it joins
  kData = 1,     ///< joins an epoch by its token
  kProbe = 2,    ///< belongs to no epoch
};

struct Auth {
  std::uint32_t scheme = 0;  ///< 0: none
  std::vector<std::byte> payload;
  friend bool operator==(const Auth&, const Auth&) = default;
};

struct HostIdentity {
  std::array<std::byte, 16> boot_id{};
  std::uint32_t uid = 0;
  std::uint32_t pid = 0;
  std::uint64_t pid_start = 0;  ///< clock ticks since boot; pins the pid
  std::string local_address;    ///< abstract unix socket of the local transport; may be empty
  friend bool operator==(const HostIdentity&, const HostIdentity&) = default;
};

/// What an engine can do beyond what the version demands.
inline constexpr std::uint64_t kFeatureLoans = 1;  ///< answers reads that ask for a loan

struct Hello {
  std::uint32_t version_min = kVersionMin;
  std::uint32_t version_max = kVersionMax;
  LaneKind kind = LaneKind::kControl;
  Incarnation incarnation;         ///< of the initiator, never 0
  std::string session_id;          ///< where the initiator listens (canonical), or empty
  Incarnation target_incarnation;  ///< unset: whoever is there
  Epoch epoch;                     ///< unset on probe lanes, set on all others
  std::optional<Token> token;      ///< data lanes always, probe lanes never
  std::uint32_t lane_index = 0;
  std::uint64_t features = 0;
  std::optional<HostIdentity> host;
  Auth auth;
  friend bool operator==(const Hello&, const Hello&) = default;
};

/// What a data probe writes and reads back.
struct Scratch {
  RegionRef region;
  GrantId grant;
  std::uint32_t bytes = 0;
  friend bool operator==(const Scratch&, const Scratch&) = default;
};

struct HelloAck {
  std::uint32_t version = kVersionMax;
  Incarnation incarnation;
  Epoch epoch;
  std::optional<Token> token;  ///< on the lane that opened the epoch
  std::uint64_t features = 0;
  std::optional<HostIdentity> host;
  Auth auth;
  std::optional<Scratch> scratch;  ///< probe lanes
  std::uint64_t control_seq = 0;   ///< last reliable control message handed on from this initiator
  friend bool operator==(const HelloAck&, const HelloAck&) = default;
};

struct HelloReject {
  Code code = Code::kInternal;  ///< never kOk
  std::string message;
  Incarnation incarnation;  ///< of the one who rejects, never 0
  Epoch epoch_seen;
  std::uint32_t version_min = kVersionMin;
  std::uint32_t version_max = kVersionMax;
  friend bool operator==(const HelloReject&, const HelloReject&) = default;
};

/// A region of the sender that the standing grant opens.
struct RegionEntry {
  RegionRef ref;
  std::uint64_t base = 0;
  std::uint64_t length = 0;
  Access access = Access::kNone;
  friend bool operator==(const RegionEntry&, const RegionEntry&) = default;
};

struct RegionTablePart {
  std::uint64_t version = 0;
  bool first = false;  ///< begins a table, which replaces what was known
  bool more = false;   ///< another part of the same version follows
  std::vector<RegionEntry> added;
  friend bool operator==(const RegionTablePart&, const RegionTablePart&) = default;
};

struct RegionTableRequest {
  friend bool operator==(const RegionTableRequest&, const RegionTableRequest&) = default;
};

struct Notify {
  std::string name;
  std::string message;
  friend bool operator==(const Notify&, const Notify&) = default;
};

struct Goodbye {
  std::string reason;
  friend bool operator==(const Goodbye&, const Goodbye&) = default;
};

/// A message of the layer above; see kv_messages.h.
struct Upper {
  std::uint32_t kind = 0;
  std::string body;
  friend bool operator==(const Upper&, const Upper&) = default;
};

using Control = std::variant<RegionTablePart, RegionTableRequest, Notify, Goodbye, Upper>;

[[nodiscard]] std::vector<std::byte> encode_hello(const Hello& hello);
[[nodiscard]] std::vector<std::byte> encode_hello_ack(const HelloAck& ack);
[[nodiscard]] std::vector<std::byte> encode_hello_reject(const HelloReject& reject);
/// The caller keeps: names and messages of Notify, Upper bodies, regions per part.
[[nodiscard]] std::vector<std::byte> encode_control(const Control& control);

[[nodiscard]] Result<Hello> parse_hello(Bytes body);
[[nodiscard]] Result<HelloAck> parse_hello_ack(Bytes body);
[[nodiscard]] Result<HelloReject> parse_hello_reject(Bytes body);
[[nodiscard]] Result<Control> parse_control(Bytes body);

/// The highest version that both sides speak. Errors: kVersionMismatch, origin peer, naming both
/// ranges.
[[nodiscard]] Result<std::uint32_t> negotiate_version(std::uint32_t peer_min,
                                                      std::uint32_t peer_max);

}  // namespace kvmend::wire
