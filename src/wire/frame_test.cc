#include "wire/frame.h"

#include <gtest/gtest.h>

#include "base/config.h"
#include "wire/checksum.h"

namespace kvmend::wire {
namespace {

using Buffer = std::vector<std::byte>;

Bytes header_of(const Buffer& frame) {
  return Bytes(frame).first(kHeaderBytes);
}
Bytes body_of(const Buffer& frame) {
  return Bytes(frame).subspan(kHeaderBytes);
}

std::vector<WireSlice> some_slices() {
  return {{.region = {.slot = 1, .generation = 2}, .offset = 4096, .length = 100},
          {.region = {.slot = 0xFFFF'FFFF, .generation = 7}, .offset = 1ULL << 40, .length = 28}};
}

TEST(Frame, TheLargestBodiesFitTheStagingBuffer) {
  EXPECT_LE(kHeaderBytes + kDataBodyBytes + kMaxSlicesPerFrame * kSliceBytes,
            config::kStagingBytes);
  EXPECT_LE(kHeaderBytes + kDataBodyBytes + kMaxSlicesPerPull * (kSliceBytes + kPullSourceBytes),
            config::kStagingBytes);
  EXPECT_LE(kHeaderBytes + kMaxAcksPerFrame * kAckEntryBytes, config::kStagingBytes);
}

TEST(Frame, DataFramesComeBackAsTheyWere) {
  Buffer out;
  const DataBody body{.grant = GrantId{9}, .checksum = 77};
  append_data_frame(out, FrameType::kWrite, kFlagChecksum, ChunkId{5}, body, some_slices(), 128);
  const auto header = parse_header(header_of(out));
  ASSERT_TRUE(header) << header.error().to_string();
  EXPECT_EQ(header->type, FrameType::kWrite);
  EXPECT_EQ(header->flags, kFlagChecksum);
  EXPECT_EQ(header->id, 5U);
  EXPECT_EQ(header->payload_bytes, 128U);
  EXPECT_TRUE(check_matches(header_of(out), body_of(out)));
  std::vector<WireSlice> slices(7);
  const auto parsed = parse_data_body(*header, body_of(out), slices);
  ASSERT_TRUE(parsed);
  EXPECT_EQ(*parsed, body);
  EXPECT_EQ(slices, some_slices());
}

// The layout in docs/wire-protocol.md, byte by byte: other implementations rely on it.
TEST(Frame, TheLayoutIsFixed) {
  Buffer out;
  append_frame(out, FrameType::kPing, 0x1122334455667788, {});
  ASSERT_EQ(out.size(), 32U);
  const auto text = std::string(reinterpret_cast<const char*>(out.data()), out.size());
  EXPECT_EQ(text.substr(0, 16), std::string("KVM1\x0B\0\0\0\0\0\0\0\0\0\0\0", 16));
  EXPECT_EQ(text.substr(16, 12), std::string("\x88\x77\x66\x55\x44\x33\x22\x11\0\0\0\0", 12));
}

TEST(Frame, PullFramesCarryTheirSources) {
  Buffer out;
  const std::vector<PullSource> sources = {
      {.segment = 3, .offset = 64}, {.segment = PullSource::kForeignMemory, .offset = 1ULL << 47}};
  append_pull_frame(out, 0, ChunkId{5}, {.grant = GrantId{9}}, some_slices(), sources);
  const auto header = parse_header(header_of(out));
  ASSERT_TRUE(header);
  std::vector<WireSlice> slices;
  std::vector<PullSource> parsed;
  ASSERT_TRUE(parse_pull_body(*header, body_of(out), slices, parsed));
  EXPECT_EQ(slices, some_slices());
  EXPECT_EQ(parsed, sources);
  EXPECT_FALSE(parse_data_body(*header, body_of(out), slices));
}

TEST(Frame, ReadsMayAskForALoanAndOffersNameIt) {
  Buffer asked;
  append_data_frame(asked, FrameType::kRead, kFlagPull | kFlagChecksum, ChunkId{5},
                    {.grant = GrantId{9}}, some_slices(), 0);
  EXPECT_TRUE(parse_header(header_of(asked)));
  asked[4] = static_cast<std::byte>(FrameType::kPull);  // the flag is the reads' own
  EXPECT_FALSE(parse_header(header_of(asked)));

  const std::vector<PullSource> sources = {
      {.segment = 3, .offset = 64}, {.segment = PullSource::kForeignMemory, .offset = 1ULL << 47}};
  const ReadOffer offer{.loan = ChunkId{1ULL << 63U}, .checksum = 7};
  Buffer out;
  append_read_offer(out, kFlagChecksum, ChunkId{5}, offer, sources);
  const auto header = parse_header(header_of(out));
  ASSERT_TRUE(header);
  EXPECT_EQ(header->id, 5U);
  std::vector<PullSource> parsed;
  const auto back = parse_read_offer(*header, body_of(out), parsed);
  ASSERT_TRUE(back);
  EXPECT_EQ(*back, offer);
  EXPECT_EQ(parsed, sources);

  Buffer nothing;
  append_read_offer(nothing, 0, ChunkId{5}, {}, sources);
  EXPECT_EQ(
      parse_read_offer(*parse_header(header_of(nothing)), body_of(nothing), parsed).error().code(),
      Code::kProtocolError);
}

TEST(Frame, AnswersToReadsCarryAChecksumOnDemand) {
  Buffer plain;
  append_frame(plain, FrameType::kReadData, 4, {}, 100);
  EXPECT_TRUE(parse_header(plain));
  Buffer summed;
  append_data_frame(summed, FrameType::kReadData, kFlagChecksum, ChunkId{4}, {.checksum = 6}, {},
                    100);
  ASSERT_TRUE(parse_header(header_of(summed)));
  EXPECT_EQ(load_le<std::uint64_t>(body_of(summed).data() + 8), 6U);
  summed[5] = std::byte{0};  // the flag
  EXPECT_FALSE(parse_header(header_of(summed)));
}

TEST(Frame, AcknowledgementsComeBackAsTheyWere) {
  const std::vector<AckEntry> acks = {{.chunk = ChunkId{1}},
                                      {.chunk = ChunkId{2},
                                       .code = Code::kPermissionDenied,
                                       .origin = Origin::kCaller,
                                       .argument = 3}};
  Buffer out;
  append_acks(out, FrameType::kAck, 0, acks);
  std::vector<AckEntry> parsed;
  ASSERT_TRUE(parse_acks(*parse_header(header_of(out)), body_of(out), parsed).is_ok());
  EXPECT_EQ(parsed, acks);
}

TEST(Frame, TheEndOfAReadOrLoanNamesItself) {
  for (const FrameType type : {FrameType::kReadEnd, FrameType::kReadTaken}) {
    Buffer out;
    append_acks(out, type, 8, std::vector<AckEntry>{{.chunk = ChunkId{9}}});
    std::vector<AckEntry> parsed;
    EXPECT_EQ(parse_acks(*parse_header(header_of(out)), body_of(out), parsed).code(),
              Code::kProtocolError);
  }
}

TEST(Frame, EveryChangedByteOfHeaderOrBodyIsNoticed) {
  Buffer out;
  append_data_frame(out, FrameType::kWrite, 0, ChunkId{5}, {.grant = GrantId{9}}, some_slices(),
                    128);
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] ^= std::byte{0x40};
    EXPECT_FALSE(check_matches(header_of(out), body_of(out))) << i;
    out[i] ^= std::byte{0x40};
  }
}

TEST(Frame, AnotherProtocolIsKnownByFourBytesAndToldWhatToDo) {
  Buffer start(4);
  store_le<std::uint32_t>(start.data(), kMagic);
  EXPECT_TRUE(check_magic(start).is_ok());
  store_le<std::uint32_t>(start.data(), 4);  // the length of Mooncake's first message
  const Status alien = check_magic(start);
  EXPECT_EQ(alien.code(), Code::kProtocolError);
  EXPECT_NE(alien.detail().find("isn't a kvmend engine"), std::string::npos) << alien.detail();
  EXPECT_NE(alien.detail().find("kvmend.exec"), std::string::npos);
}

TEST(Frame, HeadersWithWrongLengthsAreRefused) {
  Buffer good;
  append_data_frame(good, FrameType::kWrite, 0, ChunkId{5}, {.grant = GrantId{9}}, some_slices(),
                    128);
  const auto refused = [&](std::size_t at, std::uint32_t value) {
    Buffer bad = good;
    store_le<std::uint32_t>(bad.data() + at, value);
    const auto result = parse_header(bad);
    return !result && result.error().code() == Code::kProtocolError &&
           result.error().origin() == Origin::kPeer;
  };
  EXPECT_TRUE(refused(0, 0x20202020));  // magic
  EXPECT_TRUE(refused(4, 0));           // type
  EXPECT_TRUE(refused(4, kMaxFrameType + 1));
  EXPECT_TRUE(refused(4, 4 | 2U << 8));   // unknown flag
  EXPECT_TRUE(refused(4, 4 | 1U << 16));  // reserved
  EXPECT_TRUE(refused(8, 63));            // body
  EXPECT_TRUE(refused(8, 0xFFFF'FFFF));
  EXPECT_TRUE(refused(12, 0));  // payload
  EXPECT_TRUE(refused(12, kMaxPayloadBytes + 1));
  EXPECT_TRUE(refused(24, 0));  // count
  EXPECT_TRUE(refused(24, kMaxSlicesPerFrame + 1));
  EXPECT_TRUE(refused(24, 0x0AAA'AAAB));  // count * 24 wraps around
  EXPECT_FALSE(parse_header(Bytes(good).first(31)));
}

TEST(Frame, SlicesMustMakeSense) {
  std::vector<WireSlice> parsed;
  const auto code = [&](std::vector<WireSlice> slices, std::uint32_t payload,
                        FrameType type = FrameType::kWrite, GrantId grant = GrantId{9}) {
    Buffer out;
    append_data_frame(out, type, 0, ChunkId{5}, {.grant = grant}, slices, payload);
    const auto result = parse_data_body(*parse_header(header_of(out)), body_of(out), parsed);
    return result ? Code::kOk : result.error().code();
  };
  auto slices = some_slices();
  EXPECT_EQ(code(slices, 129), Code::kProtocolError);
  EXPECT_EQ(code(slices, 128, FrameType::kWrite, GrantId{0}), Code::kProtocolError);
  slices[1].length = kMaxPayloadBytes;
  EXPECT_EQ(code(slices, 0, FrameType::kRead), Code::kProtocolError);
  slices[1].length = 0;
  EXPECT_EQ(code(slices, 100), Code::kProtocolError);
  slices = some_slices();
  slices[0].region.generation = 0;
  EXPECT_EQ(code(slices, 128), Code::kProtocolError);
}

TEST(Checksum, PiecesDontMatter) {
  Buffer bytes(10'000);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7);
  Checksum whole;
  whole.update(bytes);
  Checksum pieces;
  pieces.update(Bytes(bytes).first(13));
  pieces.update(Bytes(bytes).subspan(13));
  EXPECT_EQ(whole.value(), pieces.value());
  pieces.reset();
  EXPECT_EQ(pieces.value(), Checksum().value());
  EXPECT_NE(pieces.value(), whole.value());
}

}  // namespace
}  // namespace kvmend::wire
