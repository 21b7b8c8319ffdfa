// What an errno of a socket means for us: the one table from errno to code and origin.
#pragma once

#include <string_view>

#include "kvmend/status.h"

namespace kvmend::env {

/// Classifies the errno of a connection. Shortages of this host (ports, descriptors, memory) are
/// `local` and never count against a peer; an errno that the table doesn't know is taken for a
/// fault of the link. `detail` should name the addresses. Any thread.
[[nodiscard]] Status status_of_errno(int sys_errno, std::string_view detail);

/// The same for opening a listener: everything there is local. Any thread.
[[nodiscard]] Status status_of_listen_errno(int sys_errno, std::string_view detail);

}  // namespace kvmend::env
