// What the machine itself can do over tcp: one stream, sendmsg to recvmsg, straight from and into
// the pages. The line that kvmend's tcp transport is measured against.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "raw_senders.h"

namespace kvmend::bench {

enum class RawMode : std::uint8_t {
  kPlain,    ///< no headers: the receiver knows the order beforehand
  kHeaders,  ///< each ~512 KiB is preceded by a header that carries the destinations
  kWindow,   ///< with headers; each frame is answered, so many bytes may be unanswered
};

/// One connection over loopback; each side owns its end.
class RawTcp {
 public:
  /// The child listens (returns the port through `port`), the parent connects.
  static int listen_on_loopback(std::uint16_t& port);
  static int accept_one(int listener);
  static int connect_to(std::uint16_t port);

  /// Sends the pages of `pool` in `order` and waits for the byte that says they are in place; with
  /// kWindow one for each frame, and at most `window` bytes are unanswered.
  static bool send(int fd, RawMode mode, std::span<std::byte> pool, std::size_t page_bytes,
                   std::span<const std::uint32_t> src_order,
                   std::span<const std::uint32_t> dst_order, std::size_t window = SIZE_MAX,
                   RawSender sender = RawSender::kSendmsg);
  static bool receive(int fd, RawMode mode, std::span<std::byte> pool, std::size_t page_bytes,
                      std::span<const std::uint32_t> dst_order);
  /// `count` round trips of `bytes` there and one byte back, blocking; seconds of each. Rests
  /// `rest_us` microseconds before each.
  static bool ping(int fd, std::size_t bytes, std::size_t count, double* seconds, double rest_us);
  static bool pong(int fd, std::size_t bytes, std::size_t count);
};

}  // namespace kvmend::bench
