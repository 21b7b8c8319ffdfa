// For tests: a bare TCP connection to a server, to send it what no proper client would.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <string>
#include <string_view>

#include "base/address.h"
#include "base/unique_fd.h"

namespace kvmend::http::testing {

class RawPeer {
 public:
  /// Connects; `is_open()` says whether it worked.
  explicit RawPeer(const Address& to) {
    fd_.reset(::socket(to.is_ipv6() ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    int rc = -1;
    if (to.is_ipv6()) {
      sockaddr_in6 address{};
      address.sin6_family = AF_INET6;
      address.sin6_port = htons(to.port);
      inet_pton(AF_INET6, to.host.c_str(), &address.sin6_addr);
      rc = ::connect(fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
    } else {
      sockaddr_in address{};
      address.sin_family = AF_INET;
      address.sin_port = htons(to.port);
      inet_pton(AF_INET, to.host.c_str(), &address.sin_addr);
      rc = ::connect(fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
    }
    if (rc != 0) fd_.reset();
  }

  [[nodiscard]] bool is_open() const { return fd_.is_open(); }

  /// False once the server has closed.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const auto sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }

  void finish_sending() { ::shutdown(fd_.get(), SHUT_WR); }

  /// Everything until the server closes, or nothing has come for 10 s (then `closed()` is false).
  std::string read_all() {
    std::string all;
    while (read_some(all)) {
    }
    return all;
  }

  /// Reads until `text` has been seen.
  std::string read_until(std::string_view text) {
    std::string all;
    while (all.find(text) == std::string::npos && read_some(all)) {
    }
    return all;
  }

  [[nodiscard]] bool closed() const { return closed_; }

 private:
  bool read_some(std::string& into) {
    pollfd entry{.fd = fd_.get(), .events = POLLIN, .revents = 0};
    if (::poll(&entry, 1, 10'000) <= 0) return false;
    std::array<char, 4096> buffer{};
    const auto got = ::recv(fd_.get(), buffer.data(), buffer.size(), 0);
    if (got <= 0) {
      closed_ = true;
      return false;
    }
    into.append(buffer.data(), static_cast<std::size_t>(got));
    return true;
  }

  UniqueFd fd_;
  bool closed_ = false;
};

}  // namespace kvmend::http::testing
