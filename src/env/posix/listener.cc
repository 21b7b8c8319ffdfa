#include "env/posix/listener.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>

#include <cerrno>
#include <utility>

#include "base/config.h"
#include "base/log.h"
#include "env/errors.h"
#include "env/posix/stream.h"

namespace kvmend::env::posix {
namespace {

using namespace std::chrono_literals;

constexpr int kBacklog = 4'096;  // the kernel caps it at net.core.somaxconn
constexpr int kMaxAcceptsPerTurn = 64;

std::unexpected<Status> failed(const char* call, const Address& at) {
  const int error = errno;
  return std::unexpected(
      status_of_listen_errno(error, fmt::format("{} at {}", call, at.to_string())));
}

// Errors of the one connection that would have been accepted (see accept(2)); the next may be fine.
bool concerns_one_connection(int error) {
  switch (error) {
    case ECONNABORTED:
    case EINTR:
    case EPERM:
    case EPROTO:
    case ENETDOWN:
    case ENOPROTOOPT:
    case EHOSTDOWN:
    case ENONET:
    case EHOSTUNREACH:
    case EOPNOTSUPP:
    case ENETUNREACH:
      return true;
    default:
      return false;
  }
}

// Without a free descriptor accept fails before it looks whether there is a connection at all.
bool somebody_waits(int listener) {
  pollfd file{.fd = listener, .events = POLLIN, .revents = 0};
  return ::poll(&file, 1, 0) != 0;
}

}  // namespace

Result<std::unique_ptr<Listener>> PosixListener::open(PosixEventLoop& loop, const Address& at,
                                                      const StreamOptions& options,
                                                      AcceptHandler* handler) {
  Result<SocketAddress> address = to_socket_address(at);
  if (!address) return fail(Code::kInvalidArgument, Origin::kLocal, address.error().detail());
  GuardedFd fd = open_tcp_socket(address->storage.ss_family);
  if (!fd.is_open()) return failed("socket", at);
  const int one = 1;
  // A restarted engine must get its port back while old connections are in TIME_WAIT. Never
  // SO_REUSEPORT: two processes would share the peers of one address.
  if (::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0)
    return failed("SO_REUSEADDR", at);
  if (at.is_ipv6() && ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof one) != 0)
    return failed("IPV6_V6ONLY", at);
  apply_options(fd.get(), options);
  if (::bind(fd.get(), address->get(), address->length) != 0) return failed("bind", at);
  if (::listen(fd.get(), kBacklog) != 0) return failed("listen", at);
  Address real = local_address(fd.get());
  std::unique_ptr<PosixListener> listener(
      new PosixListener(loop, std::move(fd), std::move(real), options, handler));
  Result<IoId> io = loop.watch(listener->fd_.get(), EPOLLIN, listener.get());
  if (!io) return std::unexpected(io.error());
  listener->io_ = *io;
  return listener;
}

PosixListener::PosixListener(PosixEventLoop& loop, GuardedFd fd, Address address,
                             StreamOptions options, AcceptHandler* handler)
    : loop_(loop),
      fd_(std::move(fd)),
      address_(std::move(address)),
      options_(std::move(options)),
      handler_(handler),
      resume_(loop) {}

PosixListener::~PosixListener() {
  loop_.unwatch(io_);
}

void PosixListener::on_io(std::uint32_t) {
  PosixEventLoop& loop = loop_;
  const IoId io = io_;
  for (int budget = kMaxAcceptsPerTurn; budget > 0; --budget) {
    SocketAddress peer;
    peer.length = sizeof peer.storage;
    GuardedFd fd = GuardedFd::open([&] {
      return ::accept4(fd_.get(), peer.get(), &peer.length, SOCK_NONBLOCK | SOCK_CLOEXEC);
    });
    if (!fd.is_open()) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      const int error = errno;
      if (concerns_one_connection(error)) continue;
      if (!somebody_waits(fd_.get())) return;
      const bool freed = (error == EMFILE || error == ENFILE) && handler_->on_out_of_descriptors();
      if (!loop.is_watched(io)) return;
      if (freed) continue;
      return pause(error);
    }
    apply_options(fd.get(), {.congestion = options_.congestion});  // buffers are inherited
    apply_connection_options(fd.get(), options_);
    handler_->on_accept(std::make_unique<PosixStream>(
        loop_, std::move(fd), from_socket_address(peer), PosixStream::State::kConnected, nullptr));
    if (!loop.is_watched(io)) return;  // the handler closed this listener
  }
}

void PosixListener::on_io_failed() {
  pause(ENOMEM);
}

// Without a free descriptor, accept fails while the socket stays readable. The peers wait in the
// backlog meanwhile instead of being turned away.
void PosixListener::pause(int sys_errno) {
  static LogLimiter limiter(10s);
  std::uint64_t suppressed = 0;
  if (limiter.allow(loop_.now(), suppressed))
    spdlog::warn("listener {} can't accept for now: errno {} ({} messages held back)",
                 address_.to_string(), sys_errno, suppressed);
  resume_.arm(loop_.now() + config::kAcceptRetry, [this] { loop_.rewatch(io_, EPOLLIN); });
  loop_.rewatch(io_, 0);
}

}  // namespace kvmend::env::posix
