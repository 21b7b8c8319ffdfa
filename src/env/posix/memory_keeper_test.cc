// The keeper shares our memory and nothing else, and never outlives us.
#include "env/posix/memory_keeper.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <string>
#include <thread>

#include "base/unique_fd.h"

namespace kvmend::env::posix {
namespace {

UniqueFd watch_process(pid_t pid) {
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}
bool has_ended(const UniqueFd& pidfd, int wait_ms) {
  pollfd watched{pidfd.get(), POLLIN, 0};
  return ::poll(&watched, 1, wait_ms) == 1;
}

class MemoryKeeperTest : public testing::Test {
 protected:
  void SetUp() override {
    if (MemoryKeeper::of_this_process() == nullptr) GTEST_SKIP() << "not possible here";
  }

  /// A process with a keeper: it says the keeper's number, then does what `then` says.
  template <class Then>
  void start_owner(Then then) {
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair_), 0);
    owner_ = ::fork();
    ASSERT_GE(owner_, 0);
    if (owner_ == 0) {
      ::close(pair_[0]);
      const auto keeper = MemoryKeeper::of_this_process();
      const pid_t pid = keeper ? keeper->pid() : -1;
      if (::write(pair_[1], &pid, sizeof(pid)) != sizeof(pid)) ::_exit(2);
      then();
      for (;;) ::pause();
    }
    ::close(pair_[1]);
    pid_t pid = -1;
    ASSERT_EQ(::read(pair_[0], &pid, sizeof(pid)), static_cast<ssize_t>(sizeof(pid)));
    ASSERT_GT(pid, 0);
    keeper_ = watch_process(pid);
    ASSERT_GE(keeper_.get(), 0);
  }
  void end_owner() {
    ::kill(owner_, SIGKILL);
    ASSERT_EQ(::waitpid(owner_, nullptr, 0), owner_);
    ::close(pair_[0]);
  }

  int pair_[2] = {-1, -1};
  pid_t owner_ = -1;
  UniqueFd keeper_;
};

TEST_F(MemoryKeeperTest, EndsWithItsLastHolderAndLeavesNothingBehind) {
  auto first = MemoryKeeper::of_this_process();
  auto second = MemoryKeeper::of_this_process();
  ASSERT_EQ(first, second);
  const UniqueFd keeper = watch_process(first->pid());
  first.reset();
  EXPECT_FALSE(has_ended(keeper, 0));
  second.reset();
  EXPECT_TRUE(has_ended(keeper, 0));
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG | __WALL), -1);
  EXPECT_EQ(errno, ECHILD);
}

TEST_F(MemoryKeeperTest, HoldsNoDescriptorOfOurs) {
  const auto keeper = MemoryKeeper::of_this_process();
  const std::filesystem::path fds = "/proc/" + std::to_string(keeper->pid()) + "/fd";
  const auto count = [&] { return std::distance(std::filesystem::directory_iterator(fds), {}); };
  for (int i = 0; i < 10'000 && count() != 2; ++i) std::this_thread::yield();  // it just started
  EXPECT_EQ(count(), 2);                                                       // its own two
}

TEST_F(MemoryKeeperTest, EndsAfterAKilledOwnerWhoseSocketsAreClosed) {
  start_owner([] {});
  ::kill(owner_, SIGKILL);
  char byte = 0;
  EXPECT_EQ(::read(pair_[0], &byte, 1), 0);  // although the keeper may still live
  EXPECT_TRUE(has_ended(keeper_, 10'000));
  end_owner();
}

TEST_F(MemoryKeeperTest, DoesntKeepTheOldMemoryAfterAnExec) {
  start_owner([] { ::execl("/bin/sleep", "sleep", "1000", nullptr); });
  EXPECT_TRUE(has_ended(keeper_, 10'000));
  end_owner();
}

// Ctrl-C goes to the whole group: neither may it end the keeper nor run a handler of ours there.
TEST_F(MemoryKeeperTest, TakesNoSignal) {
  const auto keeper = MemoryKeeper::of_this_process();
  const UniqueFd watched = watch_process(keeper->pid());
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1})
    ASSERT_EQ(::kill(keeper->pid(), signal), 0);
  EXPECT_FALSE(has_ended(watched, 100));
}

TEST_F(MemoryKeeperTest, AForkedChildNeitherEndsItNorSharesIt) {
  auto keeper = MemoryKeeper::of_this_process();
  const UniqueFd watched = watch_process(keeper->pid());
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const pid_t before = keeper->pid();
    keeper.reset();
    const auto own = MemoryKeeper::of_this_process();
    ::_exit(own && own->pid() != before ? 0 : 1);
  }
  int state = 0;
  ASSERT_EQ(::waitpid(child, &state, 0), child);
  EXPECT_TRUE(WIFEXITED(state) && WEXITSTATUS(state) == 0);
  EXPECT_FALSE(has_ended(watched, 0));
}

TEST_F(MemoryKeeperTest, OutlivesTheThreadThatStartedIt) {
  std::shared_ptr<MemoryKeeper> keeper;
  std::thread([&] { keeper = MemoryKeeper::of_this_process(); }).join();
  ASSERT_NE(keeper, nullptr);
  EXPECT_FALSE(has_ended(watch_process(keeper->pid()), 100));
}

}  // namespace
}  // namespace kvmend::env::posix
