#include "transport/local/peer_process.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

namespace kvmend::transport::local {
namespace {

/// A child that waits to be killed.
class Child {
 public:
  Child() : pid_(::fork()) {
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      while (true) ::pause();
    }
  }
  ~Child() { end(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  [[nodiscard]] pid_t pid() const { return pid_; }
  void end() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_;
};

ssize_t read_from(const PeerProcess& process, void* to, const void* from, std::size_t bytes) {
  const iovec into{to, bytes};
  const iovec source{const_cast<void*>(from), bytes};  // NOLINT
  return process.read(std::span(&into, 1), std::span(&source, 1));
}

TEST(PeerProcess, ReadsAnotherProcess) {
  const std::array<char, 6> text{"hello"};  // the child has it at the same address
  const Child child;
  const auto process = PeerProcess::open(child.pid(), 0);
  ASSERT_TRUE(process) << process.error().to_string();
  std::array<char, 6> copy{};
  EXPECT_EQ(read_from(*process, copy.data(), text.data(), text.size()), 6);
  EXPECT_STREQ(copy.data(), "hello");
  EXPECT_TRUE(process->alive());
}

TEST(PeerProcess, ReadingWhatIsntThereIsAnError) {
  void* page = ::mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const Child child;
  const auto process = PeerProcess::open(child.pid(), 0);
  ASSERT_TRUE(process);
  std::array<char, 16> copy{};
  EXPECT_EQ(read_from(*process, copy.data(), page, copy.size()), -EFAULT);
  ::munmap(page, 4096);
}

TEST(PeerProcess, NoticesDeathAtOnce) {
  Child child;
  const auto process = PeerProcess::open(child.pid(), 0);
  ASSERT_TRUE(process);
  ::kill(child.pid(), SIGKILL);
  pollfd entry{.fd = process->fd(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&entry, 1, 10'000), 1);
  EXPECT_FALSE(process->alive());
  std::array<char, 16> copy{};
  child.end();
  EXPECT_EQ(read_from(*process, copy.data(), copy.data(), copy.size()), -ESRCH);
  EXPECT_FALSE(PeerProcess::open(child.pid(), 0));
}

TEST(PeerProcess, SeesThatItIsStopped) {
  const Child child;
  const auto process = PeerProcess::open(child.pid(), 0);
  ASSERT_TRUE(process);
  EXPECT_FALSE(process->stopped());
  ::kill(child.pid(), SIGSTOP);
  int status = 0;
  ASSERT_EQ(::waitpid(child.pid(), &status, WUNTRACED), child.pid());
  EXPECT_TRUE(process->stopped());
}

TEST(PeerProcess, AnotherStartTimeIsAnotherProcess) {
  const auto self = read_host_identity();
  ASSERT_TRUE(self) << self.error().to_string();
  EXPECT_EQ(self->pid, static_cast<std::uint32_t>(::getpid()));
  EXPECT_TRUE(PeerProcess::open(::getpid(), self->pid_start));
  const auto other = PeerProcess::open(::getpid(), self->pid_start + 1);
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code(), Code::kUnavailable);
}

}  // namespace
}  // namespace kvmend::transport::local
