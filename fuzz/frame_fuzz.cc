// A lane's bytes as they come: header, body, header, body... (payloads are skipped, as a receiver
// would read them elsewhere). What parses is written again and must give the same bytes.
#include "wire/frame.h"

#include <algorithm>
#include <vector>

#include "fuzz.h"

using namespace kvmend;
using namespace kvmend::wire;

namespace {

// The frame as our writers would write it, nullopt-like empty when its body doesn't parse.
std::vector<std::byte> rewrite(const FrameHeader& header, Bytes body) {
  std::vector<std::byte> out;
  std::vector<WireSlice> slices;
  switch (header.type) {
    case FrameType::kWrite:
    case FrameType::kRead: {
      const auto data = parse_data_body(header, body, slices);
      if (data)
        append_data_frame(out, header.type, header.flags, ChunkId{header.id}, *data, slices,
                          header.payload_bytes);
      return out;
    }
    case FrameType::kPull: {
      std::vector<PullSource> sources;
      const auto data = parse_pull_body(header, body, slices, sources);
      if (data) append_pull_frame(out, header.flags, ChunkId{header.id}, *data, slices, sources);
      return out;
    }
    case FrameType::kReadOffer: {
      std::vector<PullSource> sources;
      const auto offer = parse_read_offer(header, body, sources);
      if (offer) append_read_offer(out, header.flags, ChunkId{header.id}, *offer, sources);
      return out;
    }
    case FrameType::kAck:
    case FrameType::kReadEnd:
    case FrameType::kReadTaken: {
      std::vector<AckEntry> acks;
      if (parse_acks(header, body, acks).is_ok()) append_acks(out, header.type, header.id, acks);
      return out;
    }
    default:
      if (header.flags == 0) append_frame(out, header.type, header.id, body, header.payload_bytes);
      return out;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Bytes stream = fuzz::bytes(data, size);
  while (stream.size() >= kHeaderBytes) {
    const Bytes head = stream.first(kHeaderBytes);
    const auto header = parse_header(head);
    if (!header) {
      KVM_CHECK(header.error().code() == Code::kProtocolError);
      break;
    }
    stream = stream.subspan(kHeaderBytes);
    if (stream.size() < header->body_bytes) break;
    const Bytes body = stream.first(header->body_bytes);
    stream = stream.subspan(header->body_bytes);
    // The check itself isn't asked: the fuzzer would never get past it.
    const auto out = rewrite(*header, body);
    if (out.empty()) continue;
    KVM_CHECK(check_matches(Bytes(out).first(kHeaderBytes), Bytes(out).subspan(kHeaderBytes)));
    constexpr std::size_t kCheckAt = kHeaderBytes - 4;
    KVM_CHECK(std::ranges::equal(Bytes(out).first(kCheckAt), head.first(kCheckAt)));
    // Acknowledgements may change: unknown codes are folded.
    const bool acknowledges = header->type == FrameType::kAck ||
                              header->type == FrameType::kReadEnd ||
                              header->type == FrameType::kReadTaken;
    if (!acknowledges) KVM_CHECK(std::ranges::equal(Bytes(out).subspan(kHeaderBytes), body));
  }
  return 0;
}
