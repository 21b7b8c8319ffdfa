#include "raw_senders.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#ifdef KVMEND_HAVE_URING
#include <liburing.h>
#endif

namespace kvmend::bench {
namespace {

constexpr std::size_t kMaxEntries = 1024;

// Moves `n` bytes on in the entries; returns the first that isn't over.
std::size_t advance(std::vector<iovec>& entries, std::size_t next, std::size_t n) {
  while (n > 0) {
    const std::size_t step = std::min(n, entries[next].iov_len);
    entries[next].iov_base = static_cast<char*>(entries[next].iov_base) + step;
    entries[next].iov_len -= step;
    n -= step;
    if (entries[next].iov_len == 0) ++next;
  }
  return next;
}

bool send_part(int fd, iovec* entries, std::size_t count, int flags, std::size_t& sent) {
  msghdr message{};
  message.msg_iov = entries;
  message.msg_iovlen = std::min(count, kMaxEntries);
  const ssize_t n = ::sendmsg(fd, &message, MSG_NOSIGNAL | flags);
  sent = n > 0 ? static_cast<std::size_t>(n) : 0;
  return n > 0 || (n < 0 && errno == EINTR);
}

class Sendmsg final : public FrameSender {
 public:
  explicit Sendmsg(int fd) : fd_(fd) {}
  bool send(std::vector<iovec>& entries) override {
    for (std::size_t next = 0; next < entries.size();) {
      std::size_t sent = 0;
      if (!send_part(fd_, entries.data() + next, entries.size() - next, 0, sent)) return false;
      next = advance(entries, next, sent);
    }
    return true;
  }

 private:
  int fd_;
};

class Splice final : public FrameSender {
 public:
  explicit Splice(int fd) : fd_(fd) {
    good_ = ::pipe2(pipe_.data(), O_CLOEXEC) == 0;
    if (good_) static_cast<void>(::fcntl(pipe_[1], F_SETPIPE_SZ, 1 << 20));
  }
  ~Splice() override {
    for (const int end : pipe_)
      if (end >= 0) ::close(end);
  }
  bool send(std::vector<iovec>& entries) override {
    if (!good_) return false;
    while (entries[0].iov_len > 0) {
      std::size_t sent = 0;
      if (!send_part(fd_, entries.data(), 1, MSG_MORE, sent)) return false;
      advance(entries, 0, sent);
    }
    std::size_t left = 0;
    for (const iovec& entry : entries) left += entry.iov_len;
    for (std::size_t next = 1; left > 0;) {
      ssize_t n = ::vmsplice(pipe_[1], entries.data() + next,
                             std::min(entries.size() - next, kMaxEntries), SPLICE_F_NONBLOCK);
      if (n <= 0) return false;
      next = advance(entries, next, static_cast<std::size_t>(n));
      while (n > 0) {
        const ssize_t moved =
            ::splice(pipe_[0], nullptr, fd_, nullptr, static_cast<std::size_t>(n),
                     SPLICE_F_MOVE | (left > static_cast<std::size_t>(n) ? SPLICE_F_MORE : 0U));
        if (moved <= 0) return false;
        n -= moved;
        left -= static_cast<std::size_t>(moved);
      }
    }
    return true;
  }

 private:
  int fd_;
  std::array<int, 2> pipe_{-1, -1};
  bool good_ = false;
};

#ifdef KVMEND_HAVE_URING

class Uring final : public FrameSender {
 public:
  explicit Uring(int fd) : fd_(fd) {
    io_uring_params params{};
    params.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_COOP_TASKRUN;
    good_ = io_uring_queue_init_params(8, &ring_, &params) == 0;
  }
  ~Uring() override {
    if (good_) io_uring_queue_exit(&ring_);
  }
  [[nodiscard]] bool good() const { return good_; }

  bool send(std::vector<iovec>& entries) override {
    for (std::size_t next = 0; next < entries.size();) {
      msghdr message{};
      message.msg_iov = entries.data() + next;
      message.msg_iovlen = std::min(entries.size() - next, kMaxEntries);
      io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
      io_uring_prep_sendmsg(sqe, fd_, &message, MSG_WAITALL | MSG_NOSIGNAL);
      io_uring_submit_and_wait(&ring_, 1);
      io_uring_cqe* cqe = nullptr;
      if (io_uring_wait_cqe(&ring_, &cqe) != 0) return false;
      const int sent = cqe->res;
      io_uring_cqe_seen(&ring_, cqe);
      if (sent <= 0) return false;
      next = advance(entries, next, static_cast<std::size_t>(sent));
    }
    return true;
  }

 private:
  int fd_;
  io_uring ring_{};
  bool good_ = false;
};

#endif

}  // namespace

std::unique_ptr<FrameSender> make_sender(RawSender kind, int fd) {
  switch (kind) {
    case RawSender::kSendmsg:
      return std::make_unique<Sendmsg>(fd);
    case RawSender::kSplice:
      return std::make_unique<Splice>(fd);
    case RawSender::kUring:
#ifdef KVMEND_HAVE_URING
      if (auto uring = std::make_unique<Uring>(fd); uring->good()) return uring;
#endif
      return nullptr;
  }
  return nullptr;
}

}  // namespace kvmend::bench
