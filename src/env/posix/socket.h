// The system calls around a TCP socket: addresses, options, errors with names in them.
#pragma once

#include <sys/socket.h>

#include <string_view>

#include "base/address.h"
#include "env/network.h"
#include "env/posix/fork_guard.h"
#include "kvmend/status.h"

namespace kvmend::env::posix {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  [[nodiscard]] sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

/// Errors: `kInvalidArgument`, caller, when the host isn't a numeric address.
[[nodiscard]] Result<SocketAddress> to_socket_address(const Address& address);
/// The text form; IPv4-mapped IPv6 addresses become plain IPv4. Empty for other families.
[[nodiscard]] Address from_socket_address(const SocketAddress& address);

/// getsockname / getpeername; an empty address when the socket has none.
[[nodiscard]] Address local_address(int fd);
[[nodiscard]] Address peer_address(int fd);

/// A non-blocking, close-on-exec TCP socket; -1 inside with errno set when there is none.
[[nodiscard]] GuardedFd open_tcp_socket(int family);

/// Buffers and congestion control; before connect or listen, since the window scale is agreed then.
/// What the system refuses is left at its default with a debug line.
void apply_options(int fd, const StreamOptions& options);
/// TCP_NODELAY and TCP_USER_TIMEOUT of a connection.
void apply_connection_options(int fd, const StreamOptions& options);

/// Takes the pending error of a socket (SO_ERROR); 0 when there is none.
[[nodiscard]] int take_socket_error(int fd);

/// Makes close() send a reset and drop what is unsent, also without TIME_WAIT.
void set_reset_on_close(int fd);

}  // namespace kvmend::env::posix
