#include "memory/guarded.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

namespace kvmend::memory {
namespace {

constexpr std::size_t kBytes = 1U << 20U;

/// Memory whose second half nobody can access any more.
class HalfGone {
 public:
  HalfGone() {
    void* at = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    data_ = static_cast<std::byte*>(at);
    std::memset(data_, 1, kBytes);
    // Not unmapped: something else would soon be mapped there, by another thread perhaps.
    ::mprotect(data_ + kBytes / 2, kBytes / 2, PROT_NONE);
  }
  ~HalfGone() { ::munmap(data_, kBytes); }
  HalfGone(const HalfGone&) = delete;
  HalfGone& operator=(const HalfGone&) = delete;
  [[nodiscard]] std::byte* data() const { return data_; }

 private:
  std::byte* data_;
};

std::vector<iovec> in_pieces(std::byte* at, std::size_t bytes, std::size_t piece) {
  std::vector<iovec> parts;
  for (std::size_t i = 0; i < bytes; i += piece)
    parts.push_back({at + i, std::min(piece, bytes - i)});
  return parts;
}

TEST(Guarded, StoresAndSumsWhatIsThere) {
  std::vector<std::byte> from(300'000);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 13 + i / 300);
  for (const std::size_t piece : {1UL, 77UL, 4'096UL, 65'536UL, 200'000UL}) {
    if (piece == 1) from.resize(3'000);
    std::vector<std::byte> to(from.size());
    ASSERT_TRUE(guarded_store(in_pieces(to.data(), to.size(), piece), from));
    EXPECT_EQ(to, from);
    wire::Checksum plain;
    plain.update(from);
    EXPECT_EQ(guarded_checksum(in_pieces(to.data(), to.size(), piece)), plain.value());
    from.resize(300'000, std::byte{9});
  }
  EXPECT_EQ(guarded_checksum({}), wire::Checksum().value());
}

TEST(Guarded, WhatIsGoneIsAnErrorAndNoSignal) {
  const HalfGone memory;
  const std::vector<std::byte> from(kBytes, std::byte{2});
  EXPECT_TRUE(
      guarded_store(in_pieces(memory.data(), kBytes / 2, 4'096), Bytes(from).first(kBytes / 2)));
  EXPECT_FALSE(guarded_store(in_pieces(memory.data(), kBytes, 4'096), from));
  EXPECT_FALSE(guarded_store(in_pieces(memory.data(), kBytes, kBytes), from));
  EXPECT_FALSE(guarded_checksum(in_pieces(memory.data(), kBytes, 100'000)));
  EXPECT_TRUE(guarded_checksum(in_pieces(memory.data(), kBytes / 2, 100'000)));
  std::vector<std::byte> to(kBytes);
  const iovec here{to.data(), kBytes};
  const iovec there{memory.data(), kBytes};
  EXPECT_LT(guarded_copy(std::span(&here, 1), std::span(&there, 1)), static_cast<ssize_t>(kBytes));
}

TEST(Guarded, TellsWhatIsMapped) {
  void* place = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  auto* at = static_cast<std::byte*>(place);
  EXPECT_TRUE(is_mapped(at, kBytes));
  ::munmap(at + kBytes / 2, kBytes / 2);
  const std::array<bool, 3> answers{is_mapped(at, kBytes / 2), is_mapped(at, kBytes),
                                    is_mapped(at + 5, kBytes / 2)};
  EXPECT_THAT(answers, testing::ElementsAre(true, false, false));
  ::munmap(at, kBytes / 2);
}

// The buffer behind it is shared memory: a forked child must not use its parent's.
TEST(Guarded, AForkedChildHasABufferOfItsOwn) {
  std::byte to{};
  const iovec place{&to, 1};
  const std::byte one{1};
  ASSERT_TRUE(guarded_store(std::span(&place, 1), std::span(&one, 1)));
  const pid_t child = ::fork();
  if (child == 0) {
    const std::byte two{2};
    for (int i = 0; i < 20'000; ++i)
      if (!guarded_store(std::span(&place, 1), std::span(&two, 1)) || to != two) ::_exit(1);
    ::_exit(0);
  }
  for (int i = 0; i < 20'000; ++i) {
    ASSERT_TRUE(guarded_store(std::span(&place, 1), std::span(&one, 1)));
    ASSERT_EQ(to, one);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

void* read_and_store(void* good) {
  std::vector<std::byte> from(100'000, std::byte{5});
  std::vector<std::byte> to(from.size());
  const HalfGone memory;
  *static_cast<bool*>(good) =
      guarded_store(in_pieces(to.data(), to.size(), 7'000), from) && to == from &&
      guarded_checksum(in_pieces(to.data(), to.size(), 999)).has_value() &&
      !guarded_checksum(in_pieces(memory.data(), kBytes, 4'096)) &&
      !guarded_store(in_pieces(memory.data() + kBytes / 2, 4'096, 4'096), Bytes(from).first(4'096));
  return nullptr;
}

// A thread that begins when the process has no descriptor left still reads and stores. (Not a
// std::thread: the sanitizer's look at its virtual table needs a descriptor.)
TEST(Guarded, WorksWithoutDescriptors) {
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit none{3, 3};
    ::setrlimit(RLIMIT_NOFILE, &none);
    ::closefrom(3);
    bool good = false;
    pthread_t thread{};
    if (::pthread_create(&thread, nullptr, read_and_store, &good) != 0) ::_exit(2);
    ::pthread_join(thread, nullptr);
    ::_exit(good ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace kvmend::memory
