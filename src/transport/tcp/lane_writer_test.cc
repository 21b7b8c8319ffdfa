#include "transport/tcp/lane_writer.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>

#include "memory/grant_table.h"
#include "transport/tcp/fake_stream.h"
#include "transport/tcp/lane_reader.h"
#include "wire/frame.h"

namespace kvmend::transport::tcp {
namespace {

/// Takes bytes as a kernel does: any part of what it is given, and nothing at all when one of the
/// places that would go into the same packet can't be read.
class TakingStream final : public FakeStream {
 public:
  env::IoResult readv(std::span<const iovec>) override {
    if (error != 0) return {.kind = env::IoResult::Kind::kError, .sys_errno = error};
    return {};
  }
  env::IoResult writev(std::span<const iovec> from) override {
    EXPECT_LE(from.size(), 1024U);
    most_entries = std::max(most_entries, from.size());
    if (error != 0) return {.kind = env::IoResult::Kind::kError, .sys_errno = error};
    for (const iovec& part : from) {
      const auto* begin = static_cast<const std::byte*>(part.iov_base);
      if (begin < bad_end && bad_begin < begin + part.iov_len)
        return {.kind = env::IoResult::Kind::kFault, .sys_errno = EFAULT};
    }
    std::size_t total = 0;
    for (const iovec& part : from) total += part.iov_len;
    std::size_t left = random.cut(std::min(total, room), 0.5);
    if (left == 0) return {.kind = env::IoResult::Kind::kAgain};
    const std::size_t moved = left;
    room -= moved;
    for (const iovec& part : from) {
      const std::size_t n = std::min(left, part.iov_len);
      const auto* begin = static_cast<const std::byte*>(part.iov_base);
      taken.insert(taken.end(), begin, begin + n);
      left -= n;
    }
    return {.kind = env::IoResult::Kind::kOk, .bytes = moved};
  }

  std::size_t room = SIZE_MAX;
  std::size_t most_entries = 0;
  int error = 0;
  const std::byte* bad_begin = nullptr;
  const std::byte* bad_end = nullptr;
  std::vector<std::byte> taken;
};

struct Seen {
  wire::FrameType type;
  std::uint64_t id;
  std::vector<std::byte> payload;
};

std::vector<Seen> frames_of(Bytes bytes) {
  std::vector<Seen> frames;
  while (!bytes.empty()) {
    const auto header = wire::parse_header(bytes.first(wire::kHeaderBytes));
    EXPECT_TRUE(header.has_value());
    if (!header) break;
    const Bytes payload =
        bytes.subspan(wire::kHeaderBytes + header->body_bytes, header->payload_bytes);
    frames.push_back({header->type, header->id, {payload.begin(), payload.end()}});
    bytes = bytes.subspan(wire::kHeaderBytes + header->body_bytes + header->payload_bytes);
  }
  return frames;
}

class LaneWriterTest : public testing::Test {
 protected:
  LaneWriterTest() {
    for (std::size_t i = 0; i < pool_.size(); ++i) pool_[i] = static_cast<std::byte>(i % 251 + 1);
    pieces_.reserve(64);
  }
  Chunk chunk(std::uint64_t id, std::size_t at, std::size_t bytes, bool urgent = false) {
    pieces_.push_back({pool_.data() + at, RegionRef{1, 1}, at, bytes});
    Chunk chunk;
    chunk.id = ChunkId(id);
    chunk.grant = GrantId(5);
    chunk.urgent = urgent;
    chunk.pieces = std::span(&pieces_.back(), 1);
    chunk.bytes = static_cast<std::uint32_t>(bytes);
    return chunk;
  }
  static std::vector<std::byte> ping(std::uint64_t nonce) {
    std::vector<std::byte> frame;
    wire::append_frame(frame, wire::FrameType::kPing, nonce, {});
    return frame;
  }
  std::vector<std::uint64_t> ids() {
    std::vector<std::uint64_t> ids;
    for (const Seen& frame : frames_of(stream_.taken)) ids.push_back(frame.id);
    return ids;
  }
  [[nodiscard]] bool is_source(const Seen& frame, std::size_t at) const {
    return std::equal(frame.payload.begin(), frame.payload.end(),
                      pool_.begin() + static_cast<std::ptrdiff_t>(at));
  }
  static bool is_zero(const Seen& frame, std::size_t from = 0) {
    return std::all_of(frame.payload.begin() + static_cast<std::ptrdiff_t>(from),
                       frame.payload.end(), [](std::byte b) { return b == std::byte{0}; });
  }

  std::vector<std::byte> pool_{std::vector<std::byte>(1U << 20)};
  std::vector<Piece> pieces_;
  TakingStream stream_;
  LaneWriter writer_;
};

TEST_F(LaneWriterTest, OnlyTheFrameWhoseMemoryFaultsIsBlamed) {
  writer_.queue_urgent(ping(100));
  for (std::uint64_t id = 1; id <= 5; ++id) writer_.queue_chunk(chunk(id, id * 1000, 500));
  stream_.bad_begin = pool_.data() + 3'100;
  stream_.bad_end = pool_.data() + 3'101;
  const LaneWriter::Outcome outcome = writer_.flush(stream_, 1U << 20);
  EXPECT_TRUE(outcome.error.is_ok());
  EXPECT_EQ(outcome.faulted, (std::vector<std::pair<ChunkId, bool>>{{ChunkId(3), false}}));
  stream_.room = SIZE_MAX;
  while (!writer_.empty()) writer_.flush(stream_, 1U << 20);
  const std::vector<Seen> frames = frames_of(stream_.taken);
  ASSERT_EQ(frames.size(), 6U);
  for (std::size_t id = 1; id <= 5; ++id) {
    EXPECT_EQ(frames[id].id, id);
    EXPECT_TRUE(id == 3 ? is_zero(frames[id]) : is_source(frames[id], id * 1000)) << id;
  }
}

TEST_F(LaneWriterTest, UrgentOnesOvertakeWhatHasNotBegun) {
  writer_.queue_chunk(chunk(1, 0, 10'000));
  writer_.queue_chunk(chunk(2, 10'000, 100));
  stream_.room = 5'000;
  while (stream_.room > 0) writer_.flush(stream_, 1U << 20);
  writer_.queue_chunk(chunk(3, 20'000, 100, true));
  writer_.queue_chunk(chunk(4, 30'000, 100, true));
  writer_.queue_urgent(ping(100));
  stream_.room = SIZE_MAX;
  while (!writer_.empty()) writer_.flush(stream_, 1U << 20);
  EXPECT_EQ(ids(), (std::vector<std::uint64_t>{1, 100, 3, 4, 2}));
  EXPECT_EQ(writer_.urgent_bytes(), 0U);
}

TEST_F(LaneWriterTest, ADetachedChunksMemoryIsNotReadAnyMore) {
  for (std::size_t sent = 0; sent < 1'200; sent += 37) {
    stream_.taken.clear();
    stream_.room = sent;
    LaneWriter writer;
    writer.queue_chunk(chunk(1, 0, 1'000));
    writer.queue_chunk(chunk(2, 5'000, 100));
    while (stream_.room > 0) writer.flush(stream_, 1U << 20);
    const bool unsent = writer.detach(ChunkId(1));
    EXPECT_EQ(unsent, sent == 0);
    stream_.bad_begin = pool_.data();
    stream_.bad_end = pool_.data() + 1'000;
    stream_.room = SIZE_MAX;
    while (!writer.empty()) {
      const LaneWriter::Outcome outcome = writer.flush(stream_, 1U << 20);
      EXPECT_TRUE(outcome.faulted.empty());
    }
    const std::vector<Seen> frames = frames_of(stream_.taken);
    ASSERT_EQ(frames.size(), unsent ? 1U : 2U) << sent;
    EXPECT_TRUE(is_source(frames.back(), 5'000));
    stream_.bad_begin = stream_.bad_end = nullptr;
    pieces_.clear();
  }
}

class CountingCopier final : public SliceCopier {
 public:
  bool gather(std::span<const iovec> parts, std::byte* into) override {
    ++gathered;
    return host_copier().gather(parts, into);
  }
  bool scatter(Bytes, std::span<const iovec>) override { return false; }
  int gathered = 0;
};

TEST_F(LaneWriterTest, SmallSlicesOfARoomAreGatheredOnceAndTheirPagesNotReadAfterwards) {
  CountingCopier copier;
  LaneWriter writer(copier);
  writer.set_stage_below(2'048);
  std::vector<Piece> small;
  std::vector<std::byte> expected;
  for (std::size_t i = 0; i < 64; ++i) {
    small.push_back({pool_.data() + i * 1'000, RegionRef{1, 1}, i * 1'000, 100});
    expected.insert(expected.end(), small.back().local, small.back().local + 100);
  }
  Chunk chunk;
  chunk.id = ChunkId(1);
  chunk.grant = GrantId(5);
  chunk.pieces = small;
  chunk.bytes = 6'400;
  writer.queue_chunk(chunk);
  stream_.room = 2'000;  // the header and a part of the payload
  for (int i = 0; i < 100 && stream_.room > 0; ++i) writer.flush(stream_, 1U << 20);
  ASSERT_FALSE(writer.empty());
  std::ranges::fill(pool_, std::byte{0});
  stream_.room = SIZE_MAX;
  while (!writer.empty()) writer.flush(stream_, 1U << 20);
  EXPECT_EQ(frames_of(stream_.taken).at(0).payload, expected);
  EXPECT_EQ(copier.gathered, 1);
  // Memory of raw users goes straight from its place.
  chunk.grant = memory::kStandingGrant;
  writer.queue_chunk(chunk);
  while (!writer.empty()) writer.flush(stream_, 1U << 20);
  EXPECT_EQ(copier.gathered, 1);
}

// What a system call is given: touching slices as one, near ones gathered, others each by itself.
TEST_F(LaneWriterTest, EntriesOfTheCallFollowHowSlicesLie) {
  constexpr std::size_t kCount = 40;
  constexpr std::size_t kBytes = 100;
  writer_.set_stage_below(2'048);
  for (const auto& [step, most] : {std::pair{100U, 2U}, {400U, 2U}, {8'000U, 41U}}) {
    for (std::size_t i = 0; i < kCount; ++i)
      pieces_.push_back({pool_.data() + i * step, RegionRef{1, 1}, i * kBytes, kBytes});
    Chunk small;
    small.id = ChunkId(step);
    small.grant = GrantId(5);
    small.pieces = std::span(pieces_).last(kCount);
    small.bytes = kCount * kBytes;
    stream_.most_entries = 0;
    stream_.taken.clear();
    writer_.queue_chunk(small);
    while (!writer_.empty()) {
      stream_.room = SIZE_MAX;
      writer_.flush(stream_, 1U << 20);
    }
    EXPECT_EQ(stream_.most_entries, most) << step;
    const std::vector<Seen> frames = frames_of(stream_.taken);
    ASSERT_EQ(frames.size(), 1U);
    for (std::size_t i = 0; i < kCount; ++i)
      EXPECT_TRUE(
          std::equal(frames[0].payload.begin() + static_cast<std::ptrdiff_t>(i * kBytes),
                     frames[0].payload.begin() + static_cast<std::ptrdiff_t>((i + 1) * kBytes),
                     pool_.begin() + static_cast<std::ptrdiff_t>(i * step)))
          << step << " slice " << i;
    pieces_.clear();
  }
}

// A room's pages are (address, bytes) too: what isn't there is an error of that room's chunk.
TEST_F(LaneWriterTest, SmallSlicesThatAreNotThereAreAnErrorOfTheirChunk) {
  writer_.set_stage_below(2'048);
  constexpr std::size_t kPage = 65'536;
  void* hole = ::mmap(nullptr, kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(hole, MAP_FAILED);
  std::vector<Piece> small;
  for (std::size_t i = 0; i < 64; ++i) {
    std::byte* local = i == 40 ? static_cast<std::byte*>(hole) : pool_.data() + i * 1'000;
    small.push_back({local, RegionRef{1, 1}, i * 1'000, 100});
  }
  Chunk chunk;
  chunk.id = ChunkId(1);
  chunk.grant = GrantId(5);
  chunk.pieces = small;
  chunk.bytes = 6'400;
  writer_.queue_chunk(chunk);
  std::vector<std::pair<ChunkId, bool>> faulted;
  while (!writer_.empty()) {
    const LaneWriter::Outcome outcome = writer_.flush(stream_, 1U << 20);
    faulted.insert(faulted.end(), outcome.faulted.begin(), outcome.faulted.end());
  }
  EXPECT_EQ(faulted, (std::vector<std::pair<ChunkId, bool>>{{ChunkId(1), true}}));
  EXPECT_TRUE(stream_.taken.empty());
  ::munmap(hole, kPage);
}

struct IgnoringSink final : FrameSink {
  Status on_frame(const wire::FrameHeader&, Bytes, std::vector<iovec>&) override { return {}; }
  bool payload_still_allowed() override { return true; }
  void on_payload_bytes(std::span<const iovec>, std::size_t) override {}
  void on_payload_discarded(std::size_t) override {}
  void on_payload_fault() override {}
  void on_payload_end() override {}
  [[nodiscard]] bool closed() const override { return false; }
};

// What health makes of a broken connection depends on its errno: a peer that took nothing for
// TCP_USER_TIMEOUT is silent, a shortage of ours says nothing about it.
TEST_F(LaneWriterTest, ABrokenConnectionIsClassifiedByItsErrno) {
  struct Case {
    int error;
    Code code;
    Origin origin;
  };
  for (const Case& one : {Case{ECONNRESET, Code::kConnectionReset, Origin::kLink},
                          Case{EPIPE, Code::kConnectionReset, Origin::kLink},
                          Case{ETIMEDOUT, Code::kPeerSilent, Origin::kLink},
                          Case{EHOSTUNREACH, Code::kUnavailable, Origin::kLink},
                          Case{ENOBUFS, Code::kResourceExhausted, Origin::kLocal}}) {
    stream_.error = one.error;
    writer_.queue_urgent(ping(1));
    const Status written = writer_.flush(stream_, 1U << 20).error;
    IgnoringSink sink;
    LaneReader reader(sink, wire::kMaxHelloBytes);
    const Status read = reader.pump(stream_, 1U << 20).error;
    for (const Status& status : {written, read}) {
      EXPECT_EQ(status.code(), one.code) << status.to_string();
      EXPECT_EQ(status.origin(), one.origin) << status.to_string();
      EXPECT_EQ(status.sys_errno(), one.error);
    }
  }
}

}  // namespace
}  // namespace kvmend::transport::tcp
