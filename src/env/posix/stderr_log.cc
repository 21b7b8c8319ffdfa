#include "env/posix/stderr_log.h"

#include <fmt/format.h>
#include <poll.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>

namespace kvmend::env::posix {
namespace {

class StderrSink final : public spdlog::sinks::base_sink<std::mutex> {
  void sink_it_(const spdlog::details::log_msg& message) override {
    pollfd file{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
    if (::poll(&file, 1, 0) != 1 || (file.revents & POLLOUT) == 0) {
      ++dropped_;
      return;
    }
    spdlog::memory_buf_t line;
    if (dropped_ > 0) fmt::format_to(std::back_inserter(line), "({} lines dropped)\n", dropped_);
    dropped_ = 0;
    formatter_->format(message, line);
    // A pipe that polls as writable takes this much without blocking.
    const std::size_t bytes = std::min<std::size_t>(line.size(), PIPE_BUF);
    if (bytes < line.size()) line[bytes - 1] = '\n';
    if (::write(STDERR_FILENO, line.data(), bytes) < 0) ++dropped_;
  }
  void flush_() override {}

  std::uint64_t dropped_ = 0;
};

}  // namespace

void log_to_stderr(const std::string& name) {
  spdlog::set_default_logger(
      std::make_shared<spdlog::logger>(name, std::make_shared<StderrSink>()));
}

}  // namespace kvmend::env::posix
