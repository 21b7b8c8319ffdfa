#include "wire/frame.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>

#ifndef XXH_INLINE_ALL
#define XXH_INLINE_ALL
#endif
#include <xxhash.h>

#include "base/check.h"

namespace kvmend::wire {
namespace {

// Offsets in the header; 6..7 are reserved and zero.
constexpr std::size_t kMagicAt = 0;
constexpr std::size_t kTypeAt = 4;
constexpr std::size_t kFlagsAt = 5;
constexpr std::size_t kReservedAt = 6;
constexpr std::size_t kBodyBytesAt = 8;
constexpr std::size_t kPayloadBytesAt = 12;
constexpr std::size_t kIdAt = 16;
constexpr std::size_t kCountAt = 24;
constexpr std::size_t kCheckAt = 28;

// What the lengths of one frame type may be.
struct Shape {
  std::uint32_t min_body;     // fixed part
  std::uint32_t max_body;     // of the variable part when entry_bytes is 0, beyond min_body
  std::uint32_t entry_bytes;  // the body is min_body + count * entry_bytes
  std::uint32_t max_count;    // at least one entry when not 0
  bool has_payload;
  std::uint8_t flags;  // the ones that may be set
};

constexpr auto kDataBody = static_cast<std::uint32_t>(kDataBodyBytes);
constexpr auto kSlice = static_cast<std::uint32_t>(kSliceBytes);
constexpr auto kSource = static_cast<std::uint32_t>(kPullSourceBytes);
constexpr auto kPulled = static_cast<std::uint32_t>(kSliceBytes + kPullSourceBytes);
constexpr auto kAckEntry = static_cast<std::uint32_t>(kAckEntryBytes);

constexpr std::array<Shape, kMaxFrameType + 1> kShapes = {{
    {0, 0, 0, 0, false, 0},                                                        // 0: never valid
    {0, kMaxHelloBytes, 0, 0, false, 0},                                           // kHello
    {0, kMaxHelloBytes, 0, 0, false, 0},                                           // kHelloAck
    {0, kMaxHelloBytes, 0, 0, false, 0},                                           // kHelloReject
    {kDataBody, 0, kSlice, kMaxSlicesPerFrame, true, kFlagChecksum},               // kWrite
    {kDataBody, 0, kSlice, kMaxSlicesPerFrame, false, kFlagChecksum | kFlagPull},  // kRead
    {0, 0, 0, 0, true, kFlagChecksum},                                             // kReadData
    {0, 0, kAckEntry, 1, false, 0},                                                // kReadEnd
    {0, 0, kAckEntry, kMaxAcksPerFrame, false, 0},                                 // kAck
    {0, kMaxControlBytes, 0, 0, false, 0},                                         // kControl
    {0, 0, 0, 0, false, 0},                                                        // kControlAck
    {0, 0, 0, 0, false, 0},                                                        // kPing
    {0, 0, 0, 0, false, 0},                                                        // kPong
    {kDataBody, 0, kPulled, kMaxSlicesPerPull, false, kFlagChecksum},              // kPull
    {kDataBody, 0, kSource, kMaxSlicesPerPull, false, kFlagChecksum},              // kReadOffer
    {0, 0, kAckEntry, 1, false, 0},                                                // kReadTaken
}};

// Why the lengths don't fit the type; nullptr when they do.
const char* shape_error(const FrameHeader& header) {
  const Shape& shape = kShapes[static_cast<std::size_t>(header.type)];
  if ((header.flags & ~shape.flags) != 0) return "flags";
  if (shape.max_count == 0 ? header.count != 0
                           : header.count == 0 || header.count > shape.max_count)
    return "count";
  if (header.type == FrameType::kReadData) {  // a DataBody only where there is a checksum
    if (header.body_bytes != ((header.flags & kFlagChecksum) != 0 ? kDataBody : 0))
      return "body length";
  } else if (shape.entry_bytes != 0
                 ? header.body_bytes != shape.min_body + header.count * shape.entry_bytes
                 : header.body_bytes > shape.max_body)
    return "body length";
  if (shape.has_payload ? header.payload_bytes == 0 || header.payload_bytes > kMaxPayloadBytes
                        : header.payload_bytes != 0)
    return "payload length";
  return nullptr;
}

std::unexpected<Status> malformed(std::string detail) {
  return fail(Code::kProtocolError, Origin::kPeer, std::move(detail));
}

std::uint32_t compute_check(Bytes header, Bytes body) {
  const XXH64_hash_t seed = XXH3_64bits(header.data(), kCheckAt);
  return static_cast<std::uint32_t>(XXH3_64bits_withSeed(body.data(), body.size(), seed));
}

// Appends room for header and body and fills the header but for its check.
std::byte* begin_frame(std::vector<std::byte>& out, const FrameHeader& header) {
  KVM_CHECK(shape_error(header) == nullptr, "a frame that the peer would refuse");
  const std::size_t at = out.size();
  out.resize(at + kHeaderBytes + header.body_bytes);
  std::byte* to = out.data() + at;
  store_le<std::uint32_t>(to + kMagicAt, kMagic);
  to[kTypeAt] = static_cast<std::byte>(header.type);
  to[kFlagsAt] = static_cast<std::byte>(header.flags);
  store_le<std::uint16_t>(to + kReservedAt, 0);
  store_le<std::uint32_t>(to + kBodyBytesAt, header.body_bytes);
  store_le<std::uint32_t>(to + kPayloadBytesAt, header.payload_bytes);
  store_le<std::uint64_t>(to + kIdAt, header.id);
  store_le<std::uint32_t>(to + kCountAt, header.count);
  return to;
}

void finish_frame(std::byte* frame, const FrameHeader& header) {
  store_le<std::uint32_t>(
      frame + kCheckAt,
      compute_check({frame, kHeaderBytes}, {frame + kHeaderBytes, header.body_bytes}));
}

std::byte* store_data_body(std::byte* to, const DataBody& body, std::span<const WireSlice> slices) {
  store_le<std::uint64_t>(to, body.grant.value);
  store_le<std::uint64_t>(to + 8, body.checksum);
  to += kDataBodyBytes;
  for (const WireSlice& slice : slices) {
    store_le<std::uint32_t>(to, slice.region.slot);
    store_le<std::uint32_t>(to + 4, slice.region.generation);
    store_le<std::uint64_t>(to + 8, slice.offset);
    store_le<std::uint32_t>(to + 16, slice.length);
    store_le<std::uint32_t>(to + 20, 0);
    to += kSliceBytes;
  }
  return to;
}

Result<DataBody> load_data_body(const FrameHeader& header, Bytes body,
                                std::vector<WireSlice>& slices) {
  const DataBody data{.grant = GrantId{load_le<std::uint64_t>(body.data())},
                      .checksum = load_le<std::uint64_t>(body.data() + 8)};
  if (!data.grant.is_set()) return malformed("data frame without a grant");
  slices.resize(header.count);
  const std::byte* from = body.data() + kDataBodyBytes;
  std::uint64_t total = 0;
  bool bad = false;  // looked at once, after the loop
  for (WireSlice& slice : slices) {
    slice.region.slot = load_le<std::uint32_t>(from);
    slice.region.generation = load_le<std::uint32_t>(from + 4);
    slice.offset = load_le<std::uint64_t>(from + 8);
    slice.length = load_le<std::uint32_t>(from + 16);
    bad |=
        slice.length == 0 || slice.region.generation == 0 || load_le<std::uint32_t>(from + 20) != 0;
    total += slice.length;
    from += kSliceBytes;
  }
  if (bad) return malformed("slice with length 0, generation 0 or reserved bits");
  if (header.type == FrameType::kWrite ? total != header.payload_bytes : total > kMaxPayloadBytes)
    return malformed(fmt::format("slices of {} bytes in a frame of type {} with {} payload bytes",
                                 total, static_cast<unsigned>(header.type), header.payload_bytes));
  return data;
}

void store_sources(std::byte* to, std::span<const PullSource> sources) {
  for (const PullSource& source : sources) {
    store_le<std::uint32_t>(to, source.segment);
    store_le<std::uint32_t>(to + 4, 0);
    store_le<std::uint64_t>(to + 8, source.offset);
    to += kPullSourceBytes;
  }
}

Status load_sources(const std::byte* from, std::size_t count, std::vector<PullSource>& sources) {
  sources.resize(count);
  for (PullSource& source : sources) {
    source.segment = load_le<std::uint32_t>(from);
    source.offset = load_le<std::uint64_t>(from + 8);
    if (load_le<std::uint32_t>(from + 4) != 0)
      return {Code::kProtocolError, Origin::kPeer, "reserved bits in a pull source"};
    from += kPullSourceBytes;
  }
  return Status::ok();
}

bool carries_acks(FrameType type) {
  return type == FrameType::kAck || type == FrameType::kReadEnd || type == FrameType::kReadTaken;
}

bool fits(const FrameHeader& header, Bytes body) {
  return shape_error(header) == nullptr && body.size() == header.body_bytes;
}

}  // namespace

Status check_magic(Bytes start) {
  const auto magic = load_le<std::uint32_t>(start.data() + kMagicAt);
  if (magic == kMagic) return {};
  return {Code::kProtocolError, Origin::kPeer,
          fmt::format("magic {:#010x}: the other end isn't a kvmend engine (if it is Mooncake's, "
                      "start its program with `python -m kvmend.exec`)",
                      magic)};
}

Result<FrameHeader> parse_header(Bytes header) {
  if (header.size() < kHeaderBytes)
    return malformed(fmt::format("header of {} bytes", header.size()));
  const std::byte* from = header.data();
  if (Status alien = check_magic(header); !alien.is_ok()) return std::unexpected(std::move(alien));
  const auto type = static_cast<std::uint8_t>(from[kTypeAt]);
  if (type == 0 || type > kMaxFrameType) return malformed(fmt::format("frame type {}", type));
  if (load_le<std::uint16_t>(from + kReservedAt) != 0)
    return malformed("reserved bits in a header");
  const FrameHeader result{.type = static_cast<FrameType>(type),
                           .flags = static_cast<std::uint8_t>(from[kFlagsAt]),
                           .body_bytes = load_le<std::uint32_t>(from + kBodyBytesAt),
                           .payload_bytes = load_le<std::uint32_t>(from + kPayloadBytesAt),
                           .id = load_le<std::uint64_t>(from + kIdAt),
                           .count = load_le<std::uint32_t>(from + kCountAt),
                           .check = load_le<std::uint32_t>(from + kCheckAt)};
  if (const char* what = shape_error(result))
    return malformed(
        fmt::format("{} in a frame of type {}: flags {:#x}, count {}, body {}, payload {}", what,
                    type, result.flags, result.count, result.body_bytes, result.payload_bytes));
  return result;
}

bool check_matches(Bytes header, Bytes body) {
  return header.size() >= kHeaderBytes &&
         load_le<std::uint32_t>(header.data() + kCheckAt) == compute_check(header, body);
}

Result<DataBody> parse_data_body(const FrameHeader& header, Bytes body,
                                 std::vector<WireSlice>& slices) {
  slices.clear();
  if ((header.type != FrameType::kWrite && header.type != FrameType::kRead) || !fits(header, body))
    return malformed("not the body of a write or read");
  return load_data_body(header, body, slices);
}

Result<DataBody> parse_pull_body(const FrameHeader& header, Bytes body,
                                 std::vector<WireSlice>& slices, std::vector<PullSource>& sources) {
  slices.clear();
  sources.clear();
  if (header.type != FrameType::kPull || !fits(header, body))
    return malformed("not the body of a pull");
  Result<DataBody> data = load_data_body(header, body, slices);
  if (!data) return data;
  const Status status = load_sources(body.data() + kDataBodyBytes + header.count * kSliceBytes,
                                     header.count, sources);
  if (!status.is_ok()) return std::unexpected(status);
  return data;
}

Result<ReadOffer> parse_read_offer(const FrameHeader& header, Bytes body,
                                   std::vector<PullSource>& sources) {
  sources.clear();
  if (header.type != FrameType::kReadOffer || !fits(header, body))
    return malformed("not the body of a read offer");
  const ReadOffer offer{.loan = ChunkId{load_le<std::uint64_t>(body.data())},
                        .checksum = load_le<std::uint64_t>(body.data() + 8)};
  if (!offer.loan.is_set()) return malformed("read offer without a loan");
  const Status status = load_sources(body.data() + kDataBodyBytes, header.count, sources);
  if (!status.is_ok()) return std::unexpected(status);
  return offer;
}

Status parse_acks(const FrameHeader& header, Bytes body, std::vector<AckEntry>& acks) {
  acks.clear();
  if (!carries_acks(header.type) || !fits(header, body))
    return {Code::kProtocolError, Origin::kPeer, "not the body of acknowledgements"};
  acks.resize(header.count);
  const std::byte* from = body.data();
  for (AckEntry& ack : acks) {
    ack.chunk = ChunkId{load_le<std::uint64_t>(from)};
    ack.code = code_from_wire(load_le<std::uint16_t>(from + 8));
    const auto origin = static_cast<std::uint8_t>(from[10]);
    ack.origin = origin <= static_cast<std::uint8_t>(Origin::kLink) ? static_cast<Origin>(origin)
                                                                    : Origin::kPeer;
    ack.argument = load_le<std::uint32_t>(from + 12);
    if (from[11] != std::byte{0})
      return {Code::kProtocolError, Origin::kPeer, "reserved bits in an acknowledgement"};
    from += kAckEntryBytes;
  }
  if (header.type != FrameType::kAck && acks.front().chunk.value != header.id)
    return {Code::kProtocolError, Origin::kPeer,
            fmt::format("an answer to {} names {}", header.id, acks.front().chunk.value)};
  return Status::ok();
}

void append_data_frame(std::vector<std::byte>& out, FrameType type, std::uint8_t flags, ChunkId id,
                       const DataBody& body, std::span<const WireSlice> slices,
                       std::uint32_t payload_bytes) {
  KVM_CHECK(type == FrameType::kWrite || type == FrameType::kRead || type == FrameType::kReadData);
  const FrameHeader header{
      .type = type,
      .flags = flags,
      .body_bytes = static_cast<std::uint32_t>(kDataBodyBytes + slices.size() * kSliceBytes),
      .payload_bytes = payload_bytes,
      .id = id.value,
      .count = static_cast<std::uint32_t>(slices.size())};
  std::byte* frame = begin_frame(out, header);
  store_data_body(frame + kHeaderBytes, body, slices);
  finish_frame(frame, header);
}

void append_pull_frame(std::vector<std::byte>& out, std::uint8_t flags, ChunkId id,
                       const DataBody& body, std::span<const WireSlice> slices,
                       std::span<const PullSource> sources) {
  KVM_CHECK(slices.size() == sources.size());
  const FrameHeader header{.type = FrameType::kPull,
                           .flags = flags,
                           .body_bytes = static_cast<std::uint32_t>(
                               kDataBodyBytes + slices.size() * (kSliceBytes + kPullSourceBytes)),
                           .id = id.value,
                           .count = static_cast<std::uint32_t>(slices.size())};
  std::byte* frame = begin_frame(out, header);
  store_sources(store_data_body(frame + kHeaderBytes, body, slices), sources);
  finish_frame(frame, header);
}

void append_read_offer(std::vector<std::byte>& out, std::uint8_t flags, ChunkId id,
                       const ReadOffer& offer, std::span<const PullSource> sources) {
  const FrameHeader header{
      .type = FrameType::kReadOffer,
      .flags = flags,
      .body_bytes = static_cast<std::uint32_t>(kDataBodyBytes + sources.size() * kPullSourceBytes),
      .id = id.value,
      .count = static_cast<std::uint32_t>(sources.size())};
  std::byte* frame = begin_frame(out, header);
  store_le<std::uint64_t>(frame + kHeaderBytes, offer.loan.value);
  store_le<std::uint64_t>(frame + kHeaderBytes + 8, offer.checksum);
  store_sources(frame + kHeaderBytes + kDataBodyBytes, sources);
  finish_frame(frame, header);
}

void append_acks(std::vector<std::byte>& out, FrameType type, std::uint64_t id,
                 std::span<const AckEntry> acks) {
  KVM_CHECK(carries_acks(type));
  const FrameHeader header{.type = type,
                           .body_bytes = static_cast<std::uint32_t>(acks.size() * kAckEntryBytes),
                           .id = id,
                           .count = static_cast<std::uint32_t>(acks.size())};
  std::byte* frame = begin_frame(out, header);
  std::byte* to = frame + kHeaderBytes;
  for (const AckEntry& ack : acks) {
    store_le<std::uint64_t>(to, ack.chunk.value);
    store_le<std::uint16_t>(to + 8, static_cast<std::uint16_t>(ack.code));
    to[10] = static_cast<std::byte>(ack.origin);
    to[11] = std::byte{0};
    store_le<std::uint32_t>(to + 12, ack.argument);
    to += kAckEntryBytes;
  }
  finish_frame(frame, header);
}

void append_frame(std::vector<std::byte>& out, FrameType type, std::uint64_t id, Bytes body,
                  std::uint32_t payload_bytes) {
  const FrameHeader header{.type = type,
                           .body_bytes = static_cast<std::uint32_t>(body.size()),
                           .payload_bytes = payload_bytes,
                           .id = id};
  std::byte* frame = begin_frame(out, header);
  std::ranges::copy(body, frame + kHeaderBytes);
  finish_frame(frame, header);
}

}  // namespace kvmend::wire
