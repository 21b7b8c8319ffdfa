#include "env/posix/fork_guard.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "base/check.h"
#include "base/thread_annotations.h"

namespace kvmend::env::posix {
namespace {

struct Registry {
  Mutex mutex;
  std::vector<bool> guarded KVM_GUARDED_BY(mutex);  // by descriptor
};

Registry& registry();

// The three handlers hold the registry's mutex across fork(), which the analysis can't follow.
void before_fork() KVM_NO_THREAD_SAFETY_ANALYSIS {
  registry().mutex.lock();
}

void after_fork_in_parent() KVM_NO_THREAD_SAFETY_ANALYSIS {
  registry().mutex.unlock();
}

// Only async-signal-safe calls here: the parent may have had other threads.
void after_fork_in_child() KVM_NO_THREAD_SAFETY_ANALYSIS {
  Registry& r = registry();
  const int null_fd = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (std::size_t fd = 0; fd < r.guarded.size(); ++fd) {
    if (!r.guarded[fd]) continue;
    const int number = static_cast<int>(fd);
    if (null_fd < 0 || ::dup3(null_fd, number, O_CLOEXEC) < 0) ::close(number);
  }
  if (null_fd >= 0) ::close(null_fd);
  r.mutex.unlock();
}

Registry& registry() {
  // Never destroyed: descriptors may be closed by destructors of static objects.
  static Registry* const instance = [] {
    KVM_CHECK(pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child) == 0);
    return new Registry;
  }();
  return *instance;
}

}  // namespace

void GuardedFd::lock_registry() KVM_NO_THREAD_SAFETY_ANALYSIS {
  registry().mutex.lock();
}

void GuardedFd::unlock_registry(int new_fd) KVM_NO_THREAD_SAFETY_ANALYSIS {
  const int error = errno;
  Registry& r = registry();
  if (new_fd >= 0) {
    const auto index = static_cast<std::size_t>(new_fd);
    if (index >= r.guarded.size()) r.guarded.resize(index + 1);
    r.guarded[index] = true;
  }
  r.mutex.unlock();
  errno = error;
}

void GuardedFd::reset() {
  if (fd_ < 0) return;
  Registry& r = registry();
  const MutexLock lock(r.mutex);
  r.guarded[static_cast<std::size_t>(fd_)] = false;
  ::close(fd_);  // under the lock: a fork in between would leave the child with a stray socket
  fd_ = -1;
}

}  // namespace kvmend::env::posix
