// Other system calls that a sender could use for a raw stream with headers (raw_tcp.h); the
// receiver is the same. What they gain and lose stands in
// docs/decisions/0016-sender-system-calls.md.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace kvmend::bench {

enum class RawSender : std::uint8_t {
  kSendmsg,
  kSplice,  ///< vmsplice into a pipe, splice to the socket: pages aren't copied
  kUring,   ///< io_uring's sendmsg
};

/// Sends frames over one connection. One thread.
class FrameSender {
 public:
  virtual ~FrameSender() = default;
  /// The first entry is the header, the others are pages. May change the entries. False: broken.
  virtual bool send(std::vector<iovec>& entries) = 0;
};

/// Null: this kernel or build doesn't offer it.
[[nodiscard]] std::unique_ptr<FrameSender> make_sender(RawSender kind, int fd);

}  // namespace kvmend::bench
