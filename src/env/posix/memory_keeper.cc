#include "env/posix/memory_keeper.h"

#include <fcntl.h>
#include <linux/sched.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "base/log.h"
#include "base/thread_annotations.h"
#include "base/unique_fd.h"

namespace kvmend::env::posix {
namespace {

constexpr std::size_t kStackBytes = 16'384;
constexpr int kLowestFd = 16;  // out of the way of the numbers that the keeper uses

// The thread sanitizer's runtime doesn't survive a process that shares our memory.
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define KVM_THREAD_SANITIZER 1
#endif
#endif
#if defined(__SANITIZE_THREAD__) || defined(KVM_THREAD_SANITIZER)
constexpr bool kPossible = false;
#else
constexpr bool kPossible = true;
#endif

/// On the keeper's own stack, written before it starts.
struct Orders {
  int process;  // pidfd of the owner
  int life;     // hangs up at the owner's end and exec
};

#if defined(__x86_64__)
#define KVM_RAW_SYSCALL 1
// Not libc's: that keeps errno in the storage of the thread that started the keeper, which goes on
// using it, or has ended.
__attribute__((always_inline)) inline long raw_syscall(long number, long a, long b, long c, long d,
                                                       long e) {
  long result = number;
  register long r10 __asm__("r10") = d;
  register long r8 __asm__("r8") = e;
  __asm__ volatile("syscall"
                   : "+a"(result)
                   : "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8)
                   : "rcx", "r11", "memory");
  return result;
}
#elif defined(__aarch64__)
#define KVM_RAW_SYSCALL 1
__attribute__((always_inline)) inline long raw_syscall(long number, long a, long b, long c, long d,
                                                       long e) {
  register long x8 __asm__("x8") = number;
  register long x0 __asm__("x0") = a;
  register long x1 __asm__("x1") = b;
  register long x2 __asm__("x2") = c;
  register long x3 __asm__("x3") = d;
  register long x4 __asm__("x4") = e;
  __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4) : "memory");
  return x0;
}
#endif

#if defined(KVM_RAW_SYSCALL)

// The keeper's life. No libc, no thread-local storage, no instrumentation: it has no thread of this
// program behind it.
__attribute__((no_stack_protector, no_sanitize("address", "thread", "undefined"))) int keep(
    void* argument) {
  const auto* orders = static_cast<const Orders*>(argument);
  const long process = raw_syscall(SYS_dup3, orders->process, 0, 0, 0, 0);
  const long life = raw_syscall(SYS_dup3, orders->life, 1, 0, 0, 0);
  if (process < 0 || life < 0 || raw_syscall(SYS_close_range, 2, ~0U, 0, 0, 0) < 0)
    raw_syscall(SYS_exit_group, 1, 0, 0, 0, 0);
  static constexpr char kName[] = "kvmend-keeper";
  raw_syscall(SYS_prctl, PR_SET_NAME, reinterpret_cast<long>(kName), 0, 0, 0);
  pollfd watched[2];
  watched[0].fd = 0;
  watched[0].events = POLLIN;
  watched[1].fd = 1;
  watched[1].events = 0;  // a hang-up is always told
  do {
    watched[0].revents = 0;
    watched[1].revents = 0;
    raw_syscall(SYS_ppoll, reinterpret_cast<long>(watched), 2, 0, 0, 8);
  } while (watched[0].revents == 0 && watched[1].revents == 0);
  raw_syscall(SYS_exit_group, 0, 0, 0, 0, 0);
  return 0;
}

#endif

Mutex g_mutex;
std::weak_ptr<MemoryKeeper> g_keeper KVM_GUARDED_BY(g_mutex);
pid_t g_owner KVM_GUARDED_BY(g_mutex) = -1;

}  // namespace

std::shared_ptr<MemoryKeeper> MemoryKeeper::of_this_process() {
  if (!kPossible) return nullptr;
  const MutexLock lock(g_mutex);
  if (g_owner == ::getpid())
    if (auto running = g_keeper.lock()) return running;
  std::shared_ptr<MemoryKeeper> keeper(new MemoryKeeper);
  if (!keeper->start()) {
    spdlog::debug("no memory keeper: a kill of this process will be seen late ({})",
                  std::generic_category().message(errno));
    return nullptr;
  }
  g_keeper = keeper;
  g_owner = ::getpid();
  return keeper;
}

bool MemoryKeeper::start() {
#if defined(KVM_RAW_SYSCALL)
  const UniqueFd self(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  int ends[2];
  if (self.get() < 0 || ::pipe2(ends, O_CLOEXEC) != 0) return false;
  const UniqueFd hears(ends[0]);
  life_ = GuardedFd::open([&] { return ends[1]; });
  const UniqueFd process(::fcntl(self.get(), F_DUPFD_CLOEXEC, kLowestFd));
  const UniqueFd life(::fcntl(hears.get(), F_DUPFD_CLOEXEC, kLowestFd));
  if (process.get() < 0 || life.get() < 0) return false;
  stack_ = ::mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (stack_ == MAP_FAILED) {
    stack_ = nullptr;
    return false;
  }
  auto* top = static_cast<std::byte*>(stack_) + kStackBytes - 64;
  auto* orders = new (top) Orders{process.get(), life.get()};
  // It inherits the mask: a handler must never run there.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pid_ = ::clone(keep, top, CLONE_VM, orders);
  const int error = errno;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = error;
  owner_ = ::getpid();
  return pid_ > 0;
#else
  errno = ENOSYS;
  return false;
#endif
}

MemoryKeeper::~MemoryKeeper() {
  if (pid_ > 0 && owner_ == ::getpid()) {
    ::kill(pid_, SIGKILL);
    while (::waitpid(pid_, nullptr, __WALL) < 0 && errno == EINTR) {
    }
  }
  if (stack_ != nullptr) ::munmap(stack_, kStackBytes);
}

}  // namespace kvmend::env::posix
