// Staged payloads: small slices that are read into one buffer and scattered from it.
#include "transport/tcp/lane_reader.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "transport/tcp/fake_stream.h"
#include "wire/frame.h"

namespace kvmend::transport::tcp {
namespace {

/// Hands out what was sent, in pieces of random size.
class SendingStream final : public FakeStream {
 public:
  env::IoResult readv(std::span<const iovec> into) override {
    most_entries = std::max(most_entries, into.size());
    std::size_t room = 0;
    for (const iovec& part : into) room += part.iov_len;
    std::size_t left = random.cut(std::min(room, sent.size() - taken), 0.7);
    if (left == 0) return {.kind = env::IoResult::Kind::kAgain};
    const std::size_t moved = left;
    for (const iovec& part : into) {
      const std::size_t n = std::min(left, part.iov_len);
      std::memcpy(part.iov_base, sent.data() + taken, n);
      taken += n;
      left -= n;
    }
    return {.kind = env::IoResult::Kind::kOk, .bytes = moved};
  }

  std::vector<std::byte> sent;
  std::size_t taken = 0;
  std::size_t most_entries = 0;
};

constexpr std::size_t kSlices = 200;  // most of the payload lies beyond the read-ahead
constexpr std::size_t kSliceBytes = 100;

/// Places of 100 bytes, each with a gap behind it.
class Sink final : public FrameSink {
 public:
  Status on_frame(const wire::FrameHeader&, Bytes, std::vector<iovec>& into) override {
    for (std::size_t i = 0; i < kSlices; ++i)
      into.push_back({i == hole_at ? hole : pool.data() + i * step, kSliceBytes});
    return Status::ok();
  }
  bool payload_still_allowed() override { return asked++ < allowed; }
  [[nodiscard]] bool places_stay() const override { return stay; }
  void on_payload_bytes(std::span<const iovec>, std::size_t bytes) override { landed += bytes; }
  void on_payload_discarded(std::size_t bytes) override { discarded += bytes; }
  void on_payload_fault() override { ++faults; }
  void on_payload_end() override { ++ended; }
  [[nodiscard]] bool closed() const override { return false; }

  std::vector<std::byte> pool{std::vector<std::byte>(kSlices * 2 * kSliceBytes)};
  std::size_t step = 2 * kSliceBytes;
  bool stay = true;
  int allowed = 1 << 30;  // the grant goes when it was asked for so often
  int asked = 0;
  std::size_t hole_at = kSlices;
  void* hole = nullptr;
  std::size_t landed = 0;
  std::size_t discarded = 0;
  int faults = 0;
  int ended = 0;
};

class LaneReaderTest : public testing::TestWithParam<bool> {
 protected:
  LaneReaderTest() {
    sink_.stay = GetParam();
    reader_.set_stage_below(2'048);
    std::vector<wire::WireSlice> slices(kSlices, {RegionRef{1, 1}, 0, kSliceBytes});
    wire::append_data_frame(stream_.sent, wire::FrameType::kWrite, 0, ChunkId{1},
                            {.grant = GrantId{5}}, slices, kSlices * kSliceBytes);
    for (std::size_t i = 0; i < kSlices * kSliceBytes; ++i) {
      payload_.push_back(static_cast<std::byte>(i % 251 + 1));
      stream_.sent.push_back(payload_.back());
    }
  }
  void read_all() {
    for (int i = 0; i < 10'000 && sink_.ended == 0; ++i)
      ASSERT_TRUE(reader_.pump(stream_, 1U << 20).error.is_ok());
    ASSERT_EQ(sink_.ended, 1);
  }
  /// The first `bytes` of the payload are in their places, and nothing else is written.
  void expect_landed(std::size_t bytes) {
    std::vector<std::byte> expected(sink_.pool.size());
    for (std::size_t i = 0; i < bytes; ++i)
      expected[i / kSliceBytes * 2 * kSliceBytes + i % kSliceBytes] = payload_[i];
    EXPECT_EQ(sink_.pool, expected);
  }

  SendingStream stream_;
  Sink sink_;
  LaneReader reader_{sink_, 1U << 20};
  std::vector<std::byte> payload_;
};

TEST_P(LaneReaderTest, EverySliceLandsInItsPlace) {
  read_all();
  expect_landed(payload_.size());
  EXPECT_EQ(stream_.most_entries > 16, !GetParam()) << stream_.most_entries << " entries";
}

TEST_P(LaneReaderTest, PlacesThatTouchAreOneEntry) {
  sink_.step = kSliceBytes;
  read_all();
  EXPECT_EQ(sink_.landed, payload_.size());
  EXPECT_TRUE(std::ranges::equal(payload_, std::span(sink_.pool).first(payload_.size())));
  EXPECT_LE(stream_.most_entries, 16U) << "staged or not";
}

// Case I10: what comes after the grant has gone is discarded, in the middle of a frame too; staged,
// also what has been read but not scattered.
TEST_P(LaneReaderTest, I10_NothingLandsOnceTheGrantHasGone) {
  std::size_t discarded = 0;
  for (int allowed = 0; allowed < 8; ++allowed) {
    stream_.taken = 0;
    sink_ = Sink();
    sink_.stay = GetParam();
    sink_.allowed = allowed;
    LaneReader reader(sink_, 1U << 20);
    reader.set_stage_below(2'048);
    for (int i = 0; i < 10'000 && sink_.ended == 0; ++i)
      ASSERT_TRUE(reader.pump(stream_, 1U << 20).error.is_ok());
    EXPECT_EQ(sink_.landed + sink_.discarded, payload_.size());
    expect_landed(sink_.landed);
    discarded += sink_.discarded;
  }
  EXPECT_GT(discarded, 0U);
}

// Pages of a room that are read-only or gone: its frame is answered with an error, the lane goes
// on.
TEST(StagedLaneReader, PagesThatCannotBeWrittenAreAFaultOfTheirFrame) {
  constexpr std::size_t kPage = 4'096;
  for (const int access : {PROT_NONE, PROT_READ}) {
    void* hole = ::mmap(nullptr, kPage, access, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(hole, MAP_FAILED);
    SendingStream stream;
    Sink sink;
    sink.hole_at = 150;  // beyond what comes with the header
    sink.hole = hole;
    const std::vector<wire::WireSlice> slices(kSlices, {RegionRef{1, 1}, 0, kSliceBytes});
    wire::append_data_frame(stream.sent, wire::FrameType::kWrite, 0, ChunkId{1},
                            {.grant = GrantId{5}}, slices, kSlices * kSliceBytes);
    stream.sent.resize(stream.sent.size() + kSlices * kSliceBytes, std::byte{7});
    LaneReader reader(sink, 1U << 20);
    reader.set_stage_below(2'048);
    for (int i = 0; i < 10'000 && sink.ended == 0; ++i)
      ASSERT_TRUE(reader.pump(stream, 1U << 20).error.is_ok());
    EXPECT_EQ(sink.ended, 1);
    EXPECT_EQ(sink.faults, 1);
    EXPECT_EQ(sink.landed + sink.discarded, kSlices * kSliceBytes);
    ::munmap(hole, kPage);
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, LaneReaderTest, testing::Bool(),
                         [](const auto& way) { return way.param ? "Staged" : "Direct"; });

}  // namespace
}  // namespace kvmend::transport::tcp
