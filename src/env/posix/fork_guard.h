// Descriptors that a forked child must not keep. A child of fork() (Python's multiprocessing, a
// launcher) inherits every socket, and while it lives, the peers of a dead parent see neither an
// end nor a reset, and its port stays taken. Close-on-exec doesn't help a child that never execs.
//
// In the child of fork(), every descriptor held by a GuardedFd is replaced by /dev/null: the socket
// is let go, but its number stays taken, so that copies of our objects that the child destroys
// later can't close or reconfigure what the child has opened since. The registry is a process-wide
// singleton, since pthread_atfork is. Processes started by vfork, posix_spawn or clone without
// handlers are covered by close-on-exec.
#pragma once

#include <utility>

namespace kvmend::env::posix {

/// Sole owner of a descriptor that doesn't survive fork(). Movable; thread-compatible. `open` and
/// the destructor may run on any thread, also at the same time as a fork().
class GuardedFd {
 public:
  GuardedFd() = default;
  GuardedFd(GuardedFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  GuardedFd& operator=(GuardedFd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  GuardedFd(const GuardedFd&) = delete;
  GuardedFd& operator=(const GuardedFd&) = delete;
  ~GuardedFd() { reset(); }

  /// Runs `make`, which returns a new descriptor or -1 with errno set, while no fork can happen.
  /// `make` must not block.
  template <class Make>
  [[nodiscard]] static GuardedFd open(Make make);

  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] bool is_open() const { return fd_ >= 0; }
  void reset();

 private:
  explicit GuardedFd(int fd) : fd_(fd) {}
  static void lock_registry();
  static void unlock_registry(int new_fd);  // keeps errno

  int fd_ = -1;
};

template <class Make>
GuardedFd GuardedFd::open(Make make) {
  lock_registry();
  const int fd = make();
  unlock_registry(fd);
  return GuardedFd(fd);
}

}  // namespace kvmend::env::posix
