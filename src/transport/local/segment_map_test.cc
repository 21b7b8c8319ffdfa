#include "transport/local/segment_map.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "memory/pool_registry.h"

namespace kvmend::transport::local {
namespace {

UniqueFd memfd(std::uint64_t bytes, int seals) {
  UniqueFd fd(::memfd_create("t", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  if (seals != 0) {
    EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  }
  return fd;
}

Code refusal(UniqueFd fd, std::uint64_t bytes) {
  const auto mapped = MappedSegment::map(std::move(fd), bytes);
  return mapped ? Code::kOk : mapped.error().code();
}

TEST(SegmentMap, MapsSealedMemoryAndChecksBounds) {
  UniqueFd fd = memfd(8192, 0);
  ASSERT_EQ(::pwrite(fd.get(), "hello", 5, 5000), 5);
  ASSERT_EQ(::fcntl(fd.get(), F_ADD_SEALS, memory::kSegmentSeals), 0);
  const auto segment = MappedSegment::map(std::move(fd), 8192);
  ASSERT_TRUE(segment) << segment.error().to_string();
  EXPECT_EQ(std::memcmp((*segment)->at(5000, 5), "hello", 5), 0);
  EXPECT_NE((*segment)->at(8191, 1), nullptr);
  EXPECT_EQ((*segment)->at(8192, 1), nullptr);
  EXPECT_EQ((*segment)->at(8000, 193), nullptr);
  EXPECT_EQ((*segment)->at(~0ULL, 2), nullptr);
}

// A peer that could still truncate would kill us with SIGBUS in mid-copy.
TEST(SegmentMap, RefusesWhatCouldShrinkOrGrow) {
  EXPECT_EQ(refusal(memfd(8192, 0), 8192), Code::kProtocolError);
  EXPECT_EQ(refusal(memfd(8192, F_SEAL_SHRINK | F_SEAL_SEAL), 8192), Code::kProtocolError);
  EXPECT_EQ(refusal(memfd(8192, F_SEAL_SHRINK | F_SEAL_GROW), 8192), Code::kProtocolError);
  EXPECT_EQ(refusal(memfd(8192, memory::kSegmentSeals), 8192), Code::kOk);
}

TEST(SegmentMap, RefusesAnotherSizeThanStated) {
  EXPECT_EQ(refusal(memfd(8192, memory::kSegmentSeals), 16384), Code::kProtocolError);
  EXPECT_EQ(refusal(memfd(8192, memory::kSegmentSeals), 4096), Code::kProtocolError);
  EXPECT_EQ(refusal(memfd(0, memory::kSegmentSeals), 0), Code::kProtocolError);
}

TEST(SegmentMap, RefusesFilesAndOtherDescriptors) {
  std::FILE* file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  ASSERT_EQ(::ftruncate(::fileno(file), 8192), 0);
  EXPECT_EQ(refusal(UniqueFd(::dup(::fileno(file))), 8192), Code::kProtocolError);
  std::fclose(file);
  EXPECT_EQ(refusal(UniqueFd(::open("/dev/zero", O_RDONLY)), 8192), Code::kProtocolError);
}

TEST(SegmentMap, AnOwnerThatTruncatesAfterwardsFails) {
  UniqueFd fd = memfd(8192, memory::kSegmentSeals);
  const UniqueFd owner(::dup(fd.get()));
  const auto segment = MappedSegment::map(std::move(fd), 8192);
  ASSERT_TRUE(segment);
  EXPECT_EQ(::ftruncate(owner.get(), 0), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(*(*segment)->at(8191, 1), std::byte{0});
}

}  // namespace
}  // namespace kvmend::transport::local
