#include "env/errors.h"

#include <array>
#include <cerrno>
#include <string>

namespace kvmend::env {
namespace {

struct Row {
  int sys_errno;
  Code code;
  Origin origin;
};

constexpr std::array kRows{
    Row{ECONNREFUSED, Code::kConnectionRefused, Origin::kPeer},
    Row{ECONNRESET, Code::kConnectionReset, Origin::kLink},
    Row{ECONNABORTED, Code::kConnectionReset, Origin::kLink},
    Row{EPIPE, Code::kConnectionReset, Origin::kLink},
    Row{ENOTCONN, Code::kConnectionReset, Origin::kLink},
    Row{ETIMEDOUT, Code::kPeerSilent, Origin::kLink},
    Row{EHOSTUNREACH, Code::kUnavailable, Origin::kLink},
    Row{EHOSTDOWN, Code::kUnavailable, Origin::kLink},
    Row{ENETUNREACH, Code::kUnavailable, Origin::kLink},
    Row{ENETDOWN, Code::kUnavailable, Origin::kLink},
    // A local packet filter that drops our SYN answers connect() so: to us that is a broken link.
    Row{EPERM, Code::kUnavailable, Origin::kLink},
    Row{EACCES, Code::kUnavailable, Origin::kLink},
    // connect(): no free local port for that destination.
    Row{EADDRNOTAVAIL, Code::kResourceExhausted, Origin::kLocal},
    Row{EADDRINUSE, Code::kResourceExhausted, Origin::kLocal},
    Row{EAGAIN, Code::kResourceExhausted, Origin::kLocal},
    Row{EMFILE, Code::kResourceExhausted, Origin::kLocal},
    Row{ENFILE, Code::kResourceExhausted, Origin::kLocal},
    Row{ENOBUFS, Code::kResourceExhausted, Origin::kLocal},
    Row{ENOMEM, Code::kResourceExhausted, Origin::kLocal},
    Row{ENOSPC, Code::kResourceExhausted, Origin::kLocal},
    Row{EAFNOSUPPORT, Code::kUnavailable, Origin::kLocal},
    Row{EPROTONOSUPPORT, Code::kUnavailable, Origin::kLocal},
    Row{EBADF, Code::kInternal, Origin::kLocal},
    Row{ENOTSOCK, Code::kInternal, Origin::kLocal},
    Row{EINVAL, Code::kInvalidArgument, Origin::kLocal},
};

}  // namespace

Status status_of_errno(int sys_errno, std::string_view detail) {
  for (const Row& row : kRows)
    if (row.sys_errno == sys_errno) return {row.code, row.origin, std::string(detail), sys_errno};
  return {Code::kUnavailable, Origin::kLink, std::string(detail), sys_errno};
}

Status status_of_listen_errno(int sys_errno, std::string_view detail) {
  switch (sys_errno) {
    case EADDRINUSE:
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
    case ENOMEM:
    case ENOSPC:
      return {Code::kResourceExhausted, Origin::kLocal, std::string(detail), sys_errno};
    default:
      return {Code::kInvalidArgument, Origin::kLocal, std::string(detail), sys_errno};
  }
}

}  // namespace kvmend::env
