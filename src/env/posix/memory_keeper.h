// Makes the death of a large process known at once. When a process is killed, Linux first gives
// back its memory and only then closes its sockets: with 1 GiB touched that takes 70 to 150 ms,
// with a KV pool of hundreds of GiB many seconds, in which peers wait for a dead process.
//
// The keeper is a tiny process that shares this one's memory (clone with CLONE_VM) and none of its
// descriptors, waits for this one's end and then ends too. While it lives, the memory has another
// user, so our death frees nothing: the kernel goes straight on to closing the sockets, and the
// keeper's own end gives the memory back afterwards. It runs no code but a few system calls on a
// stack of its own, takes no signal, is no child for wait() (it has no exit signal), and also ends
// when this process calls exec. Tools that add up the memory of processes count it twice.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>

#include "env/posix/fork_guard.h"

namespace kvmend::env::posix {

/// Alive as long as somebody holds it. Any thread.
class MemoryKeeper {
 public:
  /// The one of this process, started if there is none. Null where the system doesn't have what it
  /// takes (pidfd_open, close_range), forbids it, or on other processors than x86-64 and AArch64:
  /// then everything goes on as without.
  [[nodiscard]] static std::shared_ptr<MemoryKeeper> of_this_process();

  ~MemoryKeeper();
  MemoryKeeper(const MemoryKeeper&) = delete;
  MemoryKeeper& operator=(const MemoryKeeper&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }

 private:
  MemoryKeeper() = default;
  [[nodiscard]] bool start();

  pid_t owner_ = -1;  // in a forked child the keeper is somebody else's
  pid_t pid_ = -1;
  void* stack_ = nullptr;
  GuardedFd life_;  // closed by our end and by exec
};

}  // namespace kvmend::env::posix
