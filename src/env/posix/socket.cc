#include "env/posix/socket.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstring>

#include "base/log.h"

namespace kvmend::env::posix {
namespace {

template <class T>
bool set_option(int fd, int level, int name, const T& value) {
  return ::setsockopt(fd, level, name, &value, sizeof value) == 0;
}

// The FORCE variants lift the limit of net.core.{w,r}mem_max for those who may (CAP_NET_ADMIN).
void set_buffer(int fd, int forced, int plain, int bytes) {
  if (bytes <= 0) return;
  if (set_option(fd, SOL_SOCKET, forced, bytes)) return;
  if (!set_option(fd, SOL_SOCKET, plain, bytes))
    spdlog::debug("socket buffer of {} bytes was refused: errno {}", bytes, errno);
}

}  // namespace

Result<SocketAddress> to_socket_address(const Address& address) {
  SocketAddress result;
  if (address.is_ipv6()) {
    sockaddr_in6 v6{};
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(address.port);
    if (::inet_pton(AF_INET6, address.host.c_str(), &v6.sin6_addr) == 1) {
      std::memcpy(&result.storage, &v6, sizeof v6);
      result.length = sizeof v6;
      return result;
    }
  } else {
    sockaddr_in v4{};
    v4.sin_family = AF_INET;
    v4.sin_port = htons(address.port);
    if (::inet_pton(AF_INET, address.host.c_str(), &v4.sin_addr) == 1) {
      std::memcpy(&result.storage, &v4, sizeof v4);
      result.length = sizeof v4;
      return result;
    }
  }
  return fail(Code::kInvalidArgument, Origin::kCaller,
              fmt::format("'{}' isn't a numeric IP address", address.host));
}

Address from_socket_address(const SocketAddress& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  Address result;
  if (address.storage.ss_family == AF_INET) {
    sockaddr_in v4{};
    std::memcpy(&v4, &address.storage, sizeof v4);
    ::inet_ntop(AF_INET, &v4.sin_addr, text.data(), text.size());
    result.port = ntohs(v4.sin_port);
  } else if (address.storage.ss_family == AF_INET6) {
    sockaddr_in6 v6{};
    std::memcpy(&v6, &address.storage, sizeof v6);
    if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
      constexpr std::size_t kV4Offset = 12;
      ::inet_ntop(AF_INET, &v6.sin6_addr.s6_addr[kV4Offset], text.data(), text.size());
    } else {
      ::inet_ntop(AF_INET6, &v6.sin6_addr, text.data(), text.size());
    }
    result.port = ntohs(v6.sin6_port);
  }
  result.host = text.data();
  return result;
}

Address local_address(int fd) {
  SocketAddress address;
  address.length = sizeof address.storage;
  if (::getsockname(fd, address.get(), &address.length) != 0) return {};
  return from_socket_address(address);
}

Address peer_address(int fd) {
  SocketAddress address;
  address.length = sizeof address.storage;
  if (::getpeername(fd, address.get(), &address.length) != 0) return {};
  return from_socket_address(address);
}

GuardedFd open_tcp_socket(int family) {
  return GuardedFd::open([family] {
    return ::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);
  });
}

void apply_options(int fd, const StreamOptions& options) {
  set_buffer(fd, SO_SNDBUFFORCE, SO_SNDBUF, options.send_buffer_bytes);
  set_buffer(fd, SO_RCVBUFFORCE, SO_RCVBUF, options.receive_buffer_bytes);
  if (options.congestion.empty()) return;
  if (::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, options.congestion.c_str(),
                   static_cast<socklen_t>(options.congestion.size())) != 0)
    spdlog::debug("congestion control '{}' was refused: errno {}", options.congestion, errno);
}

void apply_connection_options(int fd, const StreamOptions& options) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  if (options.pacing > 0 &&
      ::setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &options.pacing, sizeof options.pacing) != 0)
    spdlog::warn("pacing to {} bytes/s was refused: errno {}", options.pacing, errno);
  if (options.user_timeout <= Duration::zero()) return;
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(options.user_timeout).count();
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT,
             static_cast<unsigned>(std::min<std::int64_t>(ms, INT_MAX)));
}

int take_socket_error(int fd) {
  int error = 0;
  socklen_t length = sizeof error;
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) return errno;
  return error;
}

void set_reset_on_close(int fd) {
  set_option(fd, SOL_SOCKET, SO_LINGER, linger{.l_onoff = 1, .l_linger = 0});
}

}  // namespace kvmend::env::posix
