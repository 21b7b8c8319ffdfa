#include "raw_tcp.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <thread>
#include <vector>

#include "pair.h"

namespace kvmend::bench {
namespace {

constexpr std::size_t kCallBytes = 1U << 20;     // of one plain system call
constexpr std::size_t kFrameBytes = 512U << 10;  // of one frame with a header
constexpr std::size_t kMaxEntries = 1024;
constexpr std::size_t kHeaderBytes = 32;
constexpr std::size_t kSliceBytes = 24;

void tune(int fd) {
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5);
  const int bytes = 4 << 20;
  setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
  setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
}

// Moves everything the entries name, however many calls it takes.
template <class Call>
bool move_all(std::vector<iovec>& entries, Call call) {
  std::size_t next = 0;
  while (next < entries.size()) {
    msghdr message{};
    message.msg_iov = entries.data() + next;
    message.msg_iovlen = std::min(entries.size() - next, kMaxEntries);
    ssize_t n = call(message);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    while (n > 0) {
      const std::size_t step = std::min(static_cast<std::size_t>(n), entries[next].iov_len);
      entries[next].iov_base = static_cast<char*>(entries[next].iov_base) + step;
      entries[next].iov_len -= step;
      n -= static_cast<ssize_t>(step);
      if (entries[next].iov_len == 0) ++next;
    }
  }
  return true;
}

bool send_all(int fd, std::vector<iovec>& entries) {
  return move_all(entries, [&](msghdr& m) { return sendmsg(fd, &m, MSG_NOSIGNAL); });
}

bool receive_all(int fd, std::vector<iovec>& entries) {
  return move_all(entries, [&](msghdr& m) { return recvmsg(fd, &m, MSG_WAITALL); });
}

std::size_t pages_per_call(RawMode mode, std::size_t page_bytes) {
  const std::size_t bytes = mode == RawMode::kPlain ? kCallBytes : kFrameBytes;
  return std::clamp<std::size_t>(bytes / page_bytes, 1, 1000);
}

}  // namespace

int RawTcp::listen_on_loopback(std::uint16_t& port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  tune(fd);
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return -1;
  if (listen(fd, 8) != 0) return -1;
  socklen_t length = sizeof address;
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  port = ntohs(address.sin_port);
  return fd;
}

int RawTcp::accept_one(int listener) {
  const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  if (fd >= 0) tune(fd);
  return fd;
}

int RawTcp::connect_to(std::uint16_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  tune(fd);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return -1;
  return fd;
}

bool RawTcp::send(int fd, RawMode mode, std::span<std::byte> pool, std::size_t page_bytes,
                  std::span<const std::uint32_t> src_order,
                  std::span<const std::uint32_t> dst_order, std::size_t window, RawSender sender) {
  const auto out = make_sender(sender, fd);
  if (!out) return false;
  const std::size_t step = pages_per_call(mode, page_bytes);
  std::vector<iovec> entries;
  std::vector<std::uint64_t> header;
  std::size_t unanswered = 0;  // frames
  // Takes answers until at most so many are missing, or (without waiting) all that are there.
  const auto answers = [&](std::size_t most, bool wait) {
    std::array<char, 1024> bytes{};
    while (unanswered > most) {
      const ssize_t n =
          ::recv(fd, bytes.data(), std::min(bytes.size(), unanswered), wait ? 0 : MSG_DONTWAIT);
      if (n <= 0) return !wait && n < 0 && errno == EAGAIN;
      unanswered -= static_cast<std::size_t>(n);
    }
    return true;
  };
  for (std::size_t i = 0; i < src_order.size(); i += step) {
    const std::size_t count = std::min(step, src_order.size() - i);
    if (mode == RawMode::kWindow) {
      const std::size_t most = std::max<std::size_t>(window / (step * page_bytes), 1);
      if (!answers(0, false) || (unanswered >= most && !answers(most - 1, true))) return false;
      ++unanswered;
    }
    entries.clear();
    if (mode != RawMode::kPlain) {
      header.assign((kHeaderBytes + count * kSliceBytes) / 8, 0);
      header[0] = count;
      for (std::size_t k = 0; k < count; ++k)
        header[kHeaderBytes / 8 + k * kSliceBytes / 8] = dst_order[i + k];
      entries.push_back({header.data(), header.size() * 8});
    }
    for (std::size_t k = 0; k < count; ++k)
      entries.push_back({pool.data() + src_order[i + k] * page_bytes, page_bytes});
    if (!out->send(entries)) return false;
  }
  if (mode != RawMode::kWindow) unanswered = 1;
  return answers(0, true);
}

bool RawTcp::receive(int fd, RawMode mode, std::span<std::byte> pool, std::size_t page_bytes,
                     std::span<const std::uint32_t> dst_order) {
  const std::size_t step = pages_per_call(mode, page_bytes);
  std::vector<iovec> entries;
  std::vector<std::uint64_t> header;
  for (std::size_t i = 0; i < dst_order.size(); i += step) {
    const std::size_t count = std::min(step, dst_order.size() - i);
    entries.clear();
    if (mode != RawMode::kPlain) {
      header.resize((kHeaderBytes + count * kSliceBytes) / 8);
      std::vector<iovec> head{{header.data(), header.size() * 8}};
      if (!receive_all(fd, head) || header[0] != count) return false;
      for (std::size_t k = 0; k < count; ++k)
        entries.push_back(
            {pool.data() + header[kHeaderBytes / 8 + k * kSliceBytes / 8] * page_bytes,
             page_bytes});
    } else {
      for (std::size_t k = 0; k < count; ++k)
        entries.push_back({pool.data() + dst_order[i + k] * page_bytes, page_bytes});
    }
    if (!receive_all(fd, entries)) return false;
    const bool last = i + step >= dst_order.size();
    const char done = 1;
    if ((mode == RawMode::kWindow || last) && ::send(fd, &done, 1, MSG_NOSIGNAL) != 1) return false;
  }
  return true;
}

bool RawTcp::ping(int fd, std::size_t bytes, std::size_t count, double* seconds, double rest_us) {
  std::vector<std::byte> data(bytes);
  for (std::size_t i = 0; i < count; ++i) {
    if (rest_us > 0)
      std::this_thread::sleep_for(std::chrono::duration<double, std::micro>(rest_us));
    const double start = now_seconds();
    std::vector<iovec> out{{data.data(), data.size()}};
    if (!send_all(fd, out)) return false;
    char back = 0;
    if (::recv(fd, &back, 1, MSG_WAITALL) != 1) return false;
    seconds[i] = now_seconds() - start;
  }
  return true;
}

bool RawTcp::pong(int fd, std::size_t bytes, std::size_t count) {
  std::vector<std::byte> data(bytes);
  for (std::size_t i = 0; i < count; ++i) {
    std::vector<iovec> in{{data.data(), data.size()}};
    if (!receive_all(fd, in)) return false;
    const char back = 1;
    if (::send(fd, &back, 1, MSG_NOSIGNAL) != 1) return false;
  }
  return true;
}

}  // namespace kvmend::bench
