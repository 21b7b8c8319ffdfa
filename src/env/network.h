// Byte streams and listeners. Everything is non-blocking and belongs to one loop thread.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/address.h"
#include "base/time.h"
#include "kvmend/status.h"

namespace kvmend::env {

/// What a read or write did. After `kEof` reads aren't reported any more; after `kError` nothing
/// is, and `on_stream_error` doesn't follow: the caller knows. `status_of_errno` (env/errors.h)
/// makes a Status of `sys_errno`.
struct IoResult {
  enum class Kind : std::uint8_t {
    kOk,     ///< `bytes` > 0 were moved
    kAgain,  ///< nothing to do now; readiness will be reported
    kEof,    ///< the peer closed its side (reads only)
    kError,  ///< the stream is broken: `sys_errno` says why
    kFault,  ///< the memory given is not accessible (EFAULT); the stream itself is intact
  };
  Kind kind = Kind::kAgain;
  std::size_t bytes = 0;
  int sys_errno = 0;
};

/// Options of a stream; zero or empty means "leave the system's default".
struct StreamOptions {
  std::string congestion;        ///< TCP_CONGESTION; ignored with a debug line when refused
  int send_buffer_bytes = 0;     ///< SO_SNDBUF
  int receive_buffer_bytes = 0;  ///< SO_RCVBUF
  Duration user_timeout{};       ///< TCP_USER_TIMEOUT
  std::uint64_t pacing = 0;      ///< SO_MAX_PACING_RATE, bytes per second; not in the simulation
};

/// Receives a stream's events. Calls come from the loop thread; the handler may close or destroy
/// the stream inside any of them.
class StreamHandler {
 public:
  virtual ~StreamHandler() = default;
  virtual void on_connected() {}  ///< an outgoing connection stands
  virtual void on_readable() = 0;
  virtual void on_writable() = 0;
  /// The stream is broken or could not be connected. No further events follow.
  virtual void on_stream_error(Status status) = 0;
};

/// One connection. Destroying it closes it (without further events). Loop thread.
class Stream {
 public:
  virtual ~Stream() = default;
  /// Scatter/gather; at most 1,024 entries are used. May move fewer bytes than asked.
  virtual IoResult readv(std::span<const iovec> into) = 0;
  virtual IoResult writev(std::span<const iovec> from) = 0;
  /// Whether `on_readable` / `on_writable` are wanted (level-triggered). A new stream wants reads
  /// and, until it is connected, nothing else.
  virtual void want_read(bool on) = 0;
  virtual void want_write(bool on) = 0;
  /// Replaces the receiver of events (an accepted stream changes hands after its handshake).
  virtual void set_handler(StreamHandler* handler) = 0;
  /// Bytes handed to the stream that the peer's host hasn't acknowledged; 0 when unknown.
  [[nodiscard]] virtual std::size_t unacknowledged_bytes() const = 0;
  /// Makes the destructor send a reset instead of an orderly close.
  virtual void reset_on_close() = 0;
  [[nodiscard]] virtual const Address& peer() const = 0;
};

class AcceptHandler {
 public:
  virtual ~AcceptHandler() = default;
  /// A new connection, without a handler yet: set one, keep or drop the stream.
  virtual void on_accept(std::unique_ptr<Stream> stream) = 0;
  /// A connection waits and there is no descriptor for it. True when one was freed just now (a
  /// connection that nobody would miss was closed): then it is tried again at once.
  virtual bool on_out_of_descriptors() { return false; }
};

class Listener {
 public:
  virtual ~Listener() = default;
  [[nodiscard]] virtual const Address& address() const = 0;  ///< with the real port
};

class Network {
 public:
  virtual ~Network() = default;
  /// Listens; port 0 picks a free one. The handler must outlive the listener.
  /// Errors: `kInvalidArgument`, `kResourceExhausted` (port in use: with errno), origin local.
  virtual Result<std::unique_ptr<Listener>> listen(const Address& at, const StreamOptions& options,
                                                   AcceptHandler* handler) = 0;
  /// Starts to connect; the outcome comes as `on_connected` or `on_stream_error`, never from
  /// inside this call. A shortage of ports, memory or descriptors is returned with origin local.
  virtual Result<std::unique_ptr<Stream>> connect(const Address& to, const StreamOptions& options,
                                                  StreamHandler* handler) = 0;
};

/// What a component that lives on one loop gets to see of the world.
struct Env {
  class EventLoop& loop;
  class Random& random;
  Network& network;
};

}  // namespace kvmend::env
