// Proof that a peer's process has died, by the kernel's word. Only where the peer runs on this
// host; everywhere else silence proves nothing.
#pragma once

namespace kvmend::transport {

/// Reports the death of one process until it is destroyed. Loop thread.
class ProcessWatch {
 public:
  virtual ~ProcessWatch() = default;
};

}  // namespace kvmend::transport
