#include "env/posix/stream.h"

#include <fmt/format.h>
#include <linux/sockios.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/check.h"
#include "env/errors.h"

namespace kvmend::env::posix {
namespace {

constexpr std::size_t kMaxIov = 1'024;  // IOV_MAX of Linux

msghdr message_of(std::span<const iovec> parts) {
  msghdr message{};
  // The kernel only reads the table; its type just isn't const.
  message.msg_iov = const_cast<iovec*>(parts.data());  // NOLINT
  message.msg_iovlen = std::min(parts.size(), kMaxIov);
  return message;
}

bool is_empty(std::span<const iovec> parts) {
  return std::ranges::all_of(parts.first(std::min(parts.size(), kMaxIov)),
                             [](const iovec& part) { return part.iov_len == 0; });
}

}  // namespace

PosixStream::PosixStream(PosixEventLoop& loop, GuardedFd fd, Address peer, State state,
                         StreamHandler* handler)
    : loop_(loop),
      fd_(std::move(fd)),
      peer_(std::move(peer)),
      handler_(handler),
      state_(state),
      early_failure_(loop) {}

PosixStream::~PosixStream() {
  if (io_.value != 0) loop_.unwatch(io_);
}

Status PosixStream::start_connecting(int connect_errno) {
  if (connect_errno == 0 || connect_errno == EINPROGRESS || connect_errno == EINTR) {
    Result<IoId> io = loop_.watch(fd_.get(), watched_events_ = EPOLLOUT, this);
    if (!io) return io.error();
    io_ = *io;
    return {};
  }
  early_failure_.arm(loop_.now(), [this, connect_errno] { break_off(connect_errno, "connect"); });
  return {};
}

// ------------------------------------------------------------------------------------ transfer

IoResult PosixStream::readv(std::span<const iovec> into) {
  if (state_ == State::kConnecting) return {.kind = IoResult::Kind::kAgain};
  if (state_ == State::kBroken) return broken(ENOTCONN);
  if (eof_) return {.kind = IoResult::Kind::kEof};
  msghdr message = message_of(into);
  ssize_t got = 0;
  do {
    got = ::recvmsg(fd_.get(), &message, MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got > 0) {
    read_something_ = true;
    return {.kind = IoResult::Kind::kOk, .bytes = static_cast<std::size_t>(got)};
  }
  if (got == 0) {
    if (is_empty(into)) return {.kind = IoResult::Kind::kAgain};
    // Level-triggered readiness of an ended stream would never stop.
    eof_ = true;
    update_interest();
    return {.kind = IoResult::Kind::kEof};
  }
  return broken(errno);
}

IoResult PosixStream::writev(std::span<const iovec> from) {
  if (state_ == State::kConnecting) return {.kind = IoResult::Kind::kAgain};
  if (state_ == State::kBroken) return broken(ENOTCONN);
  const msghdr message = message_of(from);
  ssize_t put = 0;
  do {
    put = ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (put < 0 && errno == EINTR);
  if (put > 0) return {.kind = IoResult::Kind::kOk, .bytes = static_cast<std::size_t>(put)};
  if (put == 0) return {.kind = IoResult::Kind::kAgain};
  return broken(errno);
}

IoResult PosixStream::broken(int sys_errno) {
  if (sys_errno == EAGAIN || sys_errno == EWOULDBLOCK) return {.kind = IoResult::Kind::kAgain};
  if (sys_errno == EFAULT) return {.kind = IoResult::Kind::kFault, .sys_errno = EFAULT};
  state_ = State::kBroken;
  update_interest();
  return {.kind = IoResult::Kind::kError, .sys_errno = sys_errno};
}

std::size_t PosixStream::unacknowledged_bytes() const {
  int bytes = 0;
  if (::ioctl(fd_.get(), SIOCOUTQ, &bytes) != 0 || bytes < 0) return 0;
  return static_cast<std::size_t>(bytes);
}

void PosixStream::reset_on_close() {
  set_reset_on_close(fd_.get());
}

// ------------------------------------------------------------------------------------ readiness

void PosixStream::want_read(bool on) {
  want_read_ = on;
  update_interest();
}

void PosixStream::want_write(bool on) {
  want_write_ = on;
  update_interest();
}

void PosixStream::set_handler(StreamHandler* handler) {
  handler_ = handler;
  update_interest();
}

std::uint32_t PosixStream::interest() const {
  if (state_ == State::kConnecting) return EPOLLOUT;
  std::uint32_t events = 0;
  if (want_read_ && !eof_) events |= EPOLLIN;
  if (want_write_) events |= EPOLLOUT;
  return events;
}

// Without a handler, or once broken, the socket isn't watched at all: epoll reports EPOLLHUP and
// EPOLLERR also to those who ask for nothing, again and again.
void PosixStream::update_interest() {
  if (early_failure_.armed()) return;
  const bool watch = handler_ != nullptr && state_ != State::kBroken;
  if (!watch) {
    if (io_.value != 0) loop_.unwatch(std::exchange(io_, IoId{}));
    return;
  }
  const std::uint32_t events = interest();
  if (io_.value == 0) {
    Result<IoId> io = loop_.watch(fd_.get(), events, this);
    if (io) {
      io_ = *io;
      watched_events_ = events;
      return;
    }
    // Out of epoll watches: the stream is of no use, and must say so from the loop.
    const int error = io.error().sys_errno();
    early_failure_.arm(loop_.now(), [this, error] { break_off(error, "watch"); });
  } else if (events != watched_events_) {
    loop_.rewatch(io_, watched_events_ = events);
  }
}

void PosixStream::on_io(std::uint32_t events) {
  if (state_ == State::kConnecting) return finish_connecting();
  PosixEventLoop& loop = loop_;
  const IoId io = io_;  // still watched after a handler ran: this object still is, and is unbroken
  read_something_ = false;
  if ((events & EPOLLIN) != 0 && want_read_ && !eof_) {
    handler_->on_readable();
    if (!loop.is_watched(io)) return;
  }
  // Bytes that arrived before a reset are delivered first.
  if ((events & (EPOLLERR | EPOLLHUP)) != 0 && !read_something_) {
    const int error = take_socket_error(fd_.get());
    return break_off(error != 0 ? error : ECONNRESET, "connection");
  }
  if ((events & EPOLLOUT) != 0 && want_write_) handler_->on_writable();
}

void PosixStream::finish_connecting() {
  int error = take_socket_error(fd_.get());
  if (error == 0) {
    const Address remote = peer_address(fd_.get());
    if (remote.port == 0) {
      error = ENOTCONN;
    } else if (remote == local_address(fd_.get())) {
      // A connect to an unused port of this host's own ephemeral range may pick that very port as
      // its source and meet itself. Nobody listens there; a reset frees the port at once.
      reset_on_close();
      error = ECONNREFUSED;
    }
  }
  if (error != 0) return break_off(error, "connect");
  state_ = State::kConnected;
  update_interest();
  handler_->on_connected();
}

void PosixStream::on_io_failed() {
  StreamHandler* handler = handler_;
  state_ = State::kBroken;
  update_interest();
  static_cast<void>(::shutdown(fd_.get(), SHUT_RDWR));  // the peer learns it, whoever keeps us
  if (handler != nullptr)
    handler->on_stream_error(Status(Code::kResourceExhausted, Origin::kLocal, {}, ENOMEM));
}

void PosixStream::break_off(int sys_errno, std::string_view doing) {
  Status status =
      status_of_errno(sys_errno, fmt::format("{} to {} from {}", doing, peer_.to_string(),
                                             local_address(fd_.get()).to_string()));
  state_ = State::kBroken;
  StreamHandler* handler = handler_;
  update_interest();
  if (handler != nullptr) handler->on_stream_error(std::move(status));
}

}  // namespace kvmend::env::posix
