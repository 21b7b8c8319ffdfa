// Frames of a lane. Fixed little-endian layout; see docs/wire-protocol.md.
//
//   FrameHeader (32 bytes) | body (header.body_bytes) | payload (header.payload_bytes)
//
// The check is XXH3 and covers header and body (not the payload: those are the pages). Parsers are
// pure: bytes in, values or a Status out; every length is capped before anything is allocated for
// it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "kvmend/ids.h"
#include "kvmend/status.h"

namespace kvmend::wire {

inline constexpr std::uint32_t kMagic = 0x314D564BU;  // "KVM1"
inline constexpr std::size_t kHeaderBytes = 32;
inline constexpr std::size_t kSliceBytes = 24;
inline constexpr std::size_t kAckEntryBytes = 16;
inline constexpr std::uint32_t kMaxSlicesPerFrame = 1000;  // + header and read-ahead fit IOV_MAX
inline constexpr std::size_t kPullSourceBytes = 16;
inline constexpr std::uint32_t kMaxSlicesPerPull = 800;  // header + body fit kStagingBytes
inline constexpr std::uint32_t kMaxAcksPerFrame = 1024;
inline constexpr std::uint32_t kMaxPayloadBytes = 16U << 20;  // also what one read or pull may move
inline constexpr std::uint32_t kMaxControlBytes = 4U << 20;
inline constexpr std::uint32_t kMaxHelloBytes = 4096;

enum class FrameType : std::uint8_t {
  kHello = 1,        ///< body: wire::Hello; the first frame of a connection
  kHelloAck = 2,     ///< body: wire::HelloAck
  kHelloReject = 3,  ///< body: wire::HelloReject; the connection closes after it
  kWrite = 4,        ///< id: chunk; body: DataBody + slices; payload: the bytes
  kRead = 5,         ///< id: chunk; body: DataBody + slices (source at the receiver); no payload
  kReadData = 6,     ///< id: chunk; body: none, or with kFlagChecksum a DataBody without a grant;
                     ///< payload: the answer, in the order of the slices
  kReadEnd = 7,      ///< id: chunk; body: one AckEntry whose status confirms the whole read
  kAck = 8,      ///< body: AckEntry[count]; says of chunks that their bytes are in place (or not)
  kControl = 9,  ///< id: sequence number (0: unreliable); body: wire::Control
  kControlAck = 10,  ///< id: every message up to this sequence number has been handed on
  kPing = 11,        ///< id: nonce
  kPong = 12,        ///< id: the ping's nonce
  kPull = 13,        ///< id: chunk; local transport: body: DataBody + slices + one PullSource for
                     ///< each slice; no payload
  kReadOffer = 14,   ///< id: chunk; local transport, the answer to a read that asks for it: body:
                     ///< DataBody (loan instead of the grant) + one PullSource for each slice
  kReadTaken = 15,   ///< id: loan; body: one AckEntry of the same loan: how the copy went
};
inline constexpr std::uint8_t kMaxFrameType = 15;

/// Flags of data frames.
inline constexpr std::uint8_t kFlagChecksum =
    1;                                        ///< DataBody.checksum holds XXH3-64 of the payload
inline constexpr std::uint8_t kFlagPull = 2;  ///< of kRead: the initiator can copy the bytes itself

struct FrameHeader {
  FrameType type{};
  std::uint8_t flags = 0;
  std::uint32_t body_bytes = 0;
  std::uint32_t payload_bytes = 0;
  std::uint64_t id = 0;
  std::uint32_t count = 0;  ///< slices or acknowledgements in the body
  std::uint32_t check = 0;  ///< low half of XXH3-64 of the body, seeded with XXH3-64 of the
                            ///< header's first 28 bytes
};

/// One destination (write) or source (read) in the receiver's memory.
struct WireSlice {
  RegionRef region;
  std::uint64_t offset = 0;
  std::uint32_t length = 0;
  friend bool operator==(const WireSlice&, const WireSlice&) = default;
};

/// Where the receiver of a kPull or kReadOffer finds a slice's bytes in its sender's memory; the
/// length is the slice's.
struct PullSource {
  static constexpr std::uint32_t kForeignMemory = 0xFFFF'FFFFU;
  std::uint32_t segment = 0;  ///< shared segment of the owner, or kForeignMemory
  std::uint64_t offset = 0;   ///< in the segment; the address itself with kForeignMemory
  friend bool operator==(const PullSource&, const PullSource&) = default;
};

/// What stands before the slices of a data frame.
struct DataBody {
  GrantId grant;
  std::uint64_t checksum = 0;
  friend bool operator==(const DataBody&, const DataBody&) = default;
};
inline constexpr std::size_t kDataBodyBytes = 16;

/// What stands before the sources of a kReadOffer.
struct ReadOffer {
  ChunkId loan;  ///< what the owner calls it; never 0
  std::uint64_t checksum = 0;
  friend bool operator==(const ReadOffer&, const ReadOffer&) = default;
};

struct AckEntry {
  ChunkId chunk;
  Code code = Code::kOk;
  Origin origin = Origin::kNone;
  std::uint32_t argument = 0;  ///< index of the offending slice, where one exists
  friend bool operator==(const AckEntry&, const AckEntry&) = default;
};

/// Whether a connection that begins with `start` (4 bytes are enough) is kvmend's; else an error
/// that says what to do about it.
[[nodiscard]] Status check_magic(Bytes start);

/// Parses and checks the fixed part: magic, type, reserved bits, and for that type the caps of the
/// lengths and their agreement with `count`. `header` must hold kHeaderBytes. Errors (all of this
/// file): `kProtocolError`, origin peer, naming the value.
[[nodiscard]] Result<FrameHeader> parse_header(Bytes header);
/// Whether the check matches header and body. Both as they came.
[[nodiscard]] bool check_matches(Bytes header, Bytes body);
/// Parses the body of kWrite and kRead into `slices` (cleared first). The slices' lengths must sum
/// to payload_bytes for writes and to at most kMaxPayloadBytes for the others; none may be zero, no
/// region's generation and no grant may be 0.
[[nodiscard]] Result<DataBody> parse_data_body(const FrameHeader& header, Bytes body,
                                               std::vector<WireSlice>& slices);
/// The same for kPull; `sources` receives one entry for each slice.
[[nodiscard]] Result<DataBody> parse_pull_body(const FrameHeader& header, Bytes body,
                                               std::vector<WireSlice>& slices,
                                               std::vector<PullSource>& sources);
/// Parses the body of kReadOffer; `sources` is cleared first.
[[nodiscard]] Result<ReadOffer> parse_read_offer(const FrameHeader& header, Bytes body,
                                                 std::vector<PullSource>& sources);
/// Parses kAck, kReadEnd and kReadTaken (count entries). Unknown codes become `kInternal`, unknown
/// origins `kPeer`.
[[nodiscard]] Status parse_acks(const FrameHeader& header, Bytes body, std::vector<AckEntry>& acks);

/// Writers append one frame's header and body to `out`; the payload follows separately. They
/// KVM_CHECK the caps that parse_header enforces. kWrite, kRead, and kReadData with a checksum (no
/// slices):
void append_data_frame(std::vector<std::byte>& out, FrameType type, std::uint8_t flags, ChunkId id,
                       const DataBody& body, std::span<const WireSlice> slices,
                       std::uint32_t payload_bytes);
void append_pull_frame(std::vector<std::byte>& out, std::uint8_t flags, ChunkId id,
                       const DataBody& body, std::span<const WireSlice> slices,
                       std::span<const PullSource> sources);
void append_read_offer(std::vector<std::byte>& out, std::uint8_t flags, ChunkId id,
                       const ReadOffer& offer, std::span<const PullSource> sources);
/// kAck, kReadEnd, kReadTaken.
void append_acks(std::vector<std::byte>& out, FrameType type, std::uint64_t id,
                 std::span<const AckEntry> acks);
/// A frame whose body is opaque bytes (hello, control) or empty (ping, pong, control ack, and
/// kReadData with its payload following).
void append_frame(std::vector<std::byte>& out, FrameType type, std::uint64_t id, Bytes body,
                  std::uint32_t payload_bytes = 0);

}  // namespace kvmend::wire
