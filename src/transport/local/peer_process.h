// Another process of this host: pinned by a pidfd, read by process_vm_readv.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstdint>
#include <span>

#include "base/unique_fd.h"
#include "kvmend/status.h"
#include "wire/control.h"

namespace kvmend::transport::local {

/// Boot id, user, process id and start time of this process; no address. Errors: kUnavailable when
/// /proc can't be read.
Result<wire::HostIdentity> read_host_identity();

/// Constant; any thread.
class PeerProcess {
 public:
  /// Opens the process `pid`; `start` (0: any) must be its start time. Errors: kUnavailable.
  static Result<PeerProcess> open(pid_t pid, std::uint64_t start);

  [[nodiscard]] pid_t pid() const { return pid_; }
  /// Readable once the process has died.
  [[nodiscard]] int fd() const { return fd_.get(); }
  /// Whether the process lives, so that the pid has meant it all along.
  [[nodiscard]] bool alive() const;

  /// Whether it stands still (SIGSTOP, a debugger) or can't be looked at.
  [[nodiscard]] bool stopped() const;

  /// Reads as process_vm_readv does. Returns bytes (perhaps fewer than asked) or -errno.
  [[nodiscard]] ssize_t read(std::span<const iovec> into, std::span<const iovec> from) const;

 private:
  PeerProcess(pid_t pid, UniqueFd fd) : pid_(pid), fd_(std::move(fd)) {}
  pid_t pid_;
  UniqueFd fd_;
};

}  // namespace kvmend::transport::local
