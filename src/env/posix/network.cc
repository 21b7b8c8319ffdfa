#include "env/posix/network.h"

#include <fmt/format.h>

#include <cerrno>
#include <utility>

#include "base/check.h"
#include "base/try.h"
#include "env/errors.h"
#include "env/posix/listener.h"
#include "env/posix/stream.h"

namespace kvmend::env::posix {
namespace {

// Shortages that connect(2) reports at once: returned to the caller, who isn't to blame the peer.
bool is_local_shortage(int error) {
  return error != 0 && status_of_errno(error, "").origin() == Origin::kLocal;
}

}  // namespace

Result<std::unique_ptr<Listener>> PosixNetwork::listen(const Address& at,
                                                       const StreamOptions& options,
                                                       AcceptHandler* handler) {
  KVM_CHECK(handler != nullptr);
  return PosixListener::open(loop_, at, options, handler);
}

Result<std::unique_ptr<Stream>> PosixNetwork::connect(const Address& to,
                                                      const StreamOptions& options,
                                                      StreamHandler* handler) {
  KVM_CHECK(handler != nullptr);
  KVM_ASSIGN_OR_RETURN(const SocketAddress address, to_socket_address(to));
  GuardedFd fd = open_tcp_socket(address.storage.ss_family);
  if (!fd.is_open())
    return std::unexpected(status_of_errno(errno, fmt::format("socket for {}", to.to_string())));
  apply_options(fd.get(), options);
  apply_connection_options(fd.get(), options);
  const int error = ::connect(fd.get(), address.get(), address.length) == 0 ? 0 : errno;
  if (is_local_shortage(error))
    return std::unexpected(status_of_errno(error, fmt::format("connect to {}", to.to_string())));
  auto stream = std::make_unique<PosixStream>(loop_, std::move(fd), to,
                                              PosixStream::State::kConnecting, handler);
  KVM_RETURN_IF_ERROR(stream->start_connecting(error));
  return stream;
}

Result<std::unique_ptr<PosixEnv>> PosixEnv::create(const EventLoopOptions& options) {
  KVM_ASSIGN_OR_RETURN(auto loop, PosixEventLoop::create(options));
  return std::unique_ptr<PosixEnv>(new PosixEnv(std::move(loop)));
}

}  // namespace kvmend::env::posix
