#include "transport/local/link_socket.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

namespace kvmend::transport::local {
namespace {

constexpr int kBacklog = 128;

struct UnixAddress {
  sockaddr_un at{};
  socklen_t length = 0;
};

// The abstract namespace: a name that isn't a path, gone with its socket.
UnixAddress abstract_address(std::string_view name) {
  UnixAddress address;
  address.at.sun_family = AF_UNIX;
  const std::size_t n = std::min(name.size(), sizeof address.at.sun_path - 1);
  std::memcpy(address.at.sun_path + 1, name.data(), n);
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + n);
  return address;
}

UniqueFd open_socket() {
  return UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

}  // namespace

void LinkMessage::set_address(std::string_view text) {
  address.fill(0);
  std::copy_n(text.begin(), std::min(text.size(), address.size() - 1), address.begin());
}

std::string LinkMessage::get_address() const {
  return {address.data(), ::strnlen(address.data(), address.size())};
}

Result<UniqueFd> listen_at(std::string_view name) {
  UniqueFd fd = open_socket();
  const UnixAddress address = abstract_address(name);
  if (!fd.is_open() ||
      ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address.at), address.length) != 0 ||
      ::listen(fd.get(), kBacklog) != 0)
    return std::unexpected(Status(Code::kResourceExhausted, Origin::kLocal,
                                  fmt::format("listening at the unix socket @{}", name), errno));
  return fd;
}

Result<UniqueFd> connect_to(std::string_view name) {
  UniqueFd fd = open_socket();
  const UnixAddress address = abstract_address(name);
  if (!fd.is_open() ||
      ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address.at), address.length) != 0)
    return std::unexpected(Status(Code::kUnavailable, Origin::kLocal,
                                  fmt::format("connecting to the unix socket @{}", name), errno));
  return fd;
}

std::optional<UniqueFd> accept_from(int listener) {
  UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (fd.is_open()) return fd;
  // Without a free descriptor accept fails before it looks whether there is a connection at all.
  const int error = errno;
  pollfd file{.fd = listener, .events = POLLIN, .revents = 0};
  errno = ::poll(&file, 1, 0) != 0 ? error : EAGAIN;
  return std::nullopt;
}

Result<Credentials> credentials_of(int fd) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0)
    return std::unexpected(Status(Code::kUnavailable, Origin::kLocal, "SO_PEERCRED", errno));
  return Credentials{credentials.pid, credentials.uid};
}

bool send_message(int fd, const LinkMessage& message, int passed_fd) {
  iovec part{const_cast<LinkMessage*>(&message), sizeof message};  // NOLINT: only read
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  if (passed_fd >= 0) {
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    cmsghdr* entry = CMSG_FIRSTHDR(&header);
    entry->cmsg_level = SOL_SOCKET;
    entry->cmsg_type = SCM_RIGHTS;
    entry->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(entry), &passed_fd, sizeof passed_fd);
  }
  return ::sendmsg(fd, &header, MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(sizeof message);
}

Received receive_message(int fd) {
  Received received;
  iovec part{&received.message, sizeof received.message};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  // Room for exactly one descriptor (CMSG_SPACE would hold two); what doesn't fit is closed.
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  header.msg_control = control.data();
  header.msg_controllen = CMSG_LEN(sizeof(int));
  const ssize_t got = ::recvmsg(fd, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return received;
  received.kind = Received::Kind::kClosed;
  if (got <= 0) return received;
  for (cmsghdr* entry = CMSG_FIRSTHDR(&header); entry != nullptr;
       entry = CMSG_NXTHDR(&header, entry)) {
    if (entry->cmsg_level != SOL_SOCKET || entry->cmsg_type != SCM_RIGHTS) continue;
    int passed = -1;
    std::memcpy(&passed, CMSG_DATA(entry), sizeof passed);
    received.fd = UniqueFd(passed);
  }
  if (got == static_cast<ssize_t>(sizeof received.message) &&
      (header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0 &&
      received.message.magic == LinkMessage::kMagic)
    received.kind = Received::Kind::kMessage;
  return received;
}

}  // namespace kvmend::transport::local
