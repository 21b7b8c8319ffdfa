// Watches a process of this host by its pidfd.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "transport/local/fd_loop.h"
#include "transport/local/peer_process.h"
#include "transport/process_watch.h"

namespace kvmend::transport::local {

/// Loop thread.
class PidWatch final : public ProcessWatch {
 public:
  /// Null when the process isn't on this host or can't be pinned: by the boot id, and by the start
  /// time of the process with that pid.
  static std::unique_ptr<PidWatch> start(FdLoop& fds, const wire::HostIdentity& self,
                                         const wire::HostIdentity& peer,
                                         std::function<void()> died) {
    if (peer.boot_id != self.boot_id || peer.pid_start == 0) return nullptr;
    auto process = PeerProcess::open(static_cast<pid_t>(peer.pid), peer.pid_start);
    if (!process) return nullptr;
    std::unique_ptr<PidWatch> watch(new PidWatch(std::move(*process), std::move(died)));
    const Status started = watch->watch_.start(fds, watch->process_.fd(), [w = watch.get()] {
      w->watch_.stop();
      const std::function<void()> died_now = w->died_;
      died_now();
    });
    if (!started.is_ok()) return nullptr;
    return watch;
  }

 private:
  PidWatch(PeerProcess process, std::function<void()> died)
      : process_(std::move(process)), died_(std::move(died)) {}

  PeerProcess process_;
  std::function<void()> died_;
  FdWatch watch_;
};

}  // namespace kvmend::transport::local
