// A log on stderr that never makes anybody wait.
#pragma once

#include <string>

namespace kvmend::env::posix {

/// Makes spdlog's default logger write to stderr, and drop what stderr doesn't take at once (an
/// unread pipe, a stopped terminal): the event loop logs, and peers can make it do so. Dropped
/// lines are counted in the next one that gets through. Lines end at 4,096 bytes. Any thread.
void log_to_stderr(const std::string& name);

}  // namespace kvmend::env::posix
