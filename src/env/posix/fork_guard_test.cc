#include "env/posix/fork_guard.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/unique_fd.h"

namespace kvmend::env::posix {
namespace {

GuardedFd guard(int fd) {
  return GuardedFd::open([fd] { return fd; });
}

// The far end of the pair sees the end of the stream although a child of the owner still lives.
TEST(ForkGuard, AChildDoesntKeepTheSocketsOfItsParentAlive) {
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  GuardedFd ours = guard(pair[0]);
  UniqueFd far(pair[1]);
  int hold[2];
  ASSERT_EQ(::pipe(hold), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::close(hold[1]);
    far.reset();
    char byte = 0;
    static_cast<void>(::read(hold[0], &byte, 1));  // lives until the parent lets go
    ::_exit(0);
  }
  ::close(hold[0]);
  ours.reset();
  char byte = 0;
  EXPECT_EQ(::read(far.get(), &byte, 1), 0);
  ::close(hold[1]);
  int state = 0;
  ASSERT_EQ(::waitpid(child, &state, 0), child);
}

TEST(ForkGuard, InTheChildTheNumberIsDevNullAndClosingItIsHarmless) {
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  GuardedFd ours = guard(pair[0]);
  const UniqueFd unguarded(pair[1]);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    struct stat status{};
    struct stat null{};
    bool good = ::fstat(ours.get(), &status) == 0 && ::stat("/dev/null", &null) == 0 &&
                status.st_rdev == null.st_rdev && S_ISCHR(status.st_mode);
    good = good && ::fstat(unguarded.get(), &status) == 0 && S_ISSOCK(status.st_mode);
    ours.reset();
    ::_exit(good ? 0 : 1);
  }
  int state = 0;
  ASSERT_EQ(::waitpid(child, &state, 0), child);
  EXPECT_TRUE(WIFEXITED(state) && WEXITSTATUS(state) == 0);
}

TEST(ForkGuard, AClosedDescriptorIsForgotten) {
  const int fd = ::open("/dev/zero", O_RDONLY | O_CLOEXEC);
  guard(fd).reset();
  const UniqueFd again(::open("/dev/zero", O_RDONLY | O_CLOEXEC));  // takes the same number
  ASSERT_EQ(again.get(), fd);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    char byte = 1;
    ::_exit(::read(again.get(), &byte, 1) == 1 && byte == 0 ? 0 : 1);
  }
  int state = 0;
  ASSERT_EQ(::waitpid(child, &state, 0), child);
  EXPECT_TRUE(WIFEXITED(state) && WEXITSTATUS(state) == 0);
}

}  // namespace
}  // namespace kvmend::env::posix
