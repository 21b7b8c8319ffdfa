#include "env/posix/stderr_log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <array>
#include <string>

#include "base/unique_fd.h"

namespace kvmend::env::posix {
namespace {

/// stderr is a pipe while it lives.
class PipedStderr {
 public:
  PipedStderr() : saved_(::dup(STDERR_FILENO)), logger_(spdlog::default_logger()) {
    std::array<int, 2> ends{};
    EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
    read_ = UniqueFd(ends[0]);
    ::dup2(ends[1], STDERR_FILENO);
    ::close(ends[1]);
    log_to_stderr("test");
  }
  ~PipedStderr() {
    ::dup2(saved_.get(), STDERR_FILENO);
    spdlog::set_default_logger(logger_);
  }
  PipedStderr(const PipedStderr&) = delete;
  PipedStderr& operator=(const PipedStderr&) = delete;
  std::string take() {
    std::string text(1U << 20, 0);
    const ssize_t n = ::read(read_.get(), text.data(), text.size());
    text.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
    return text;
  }

 private:
  UniqueFd saved_;
  std::shared_ptr<spdlog::logger> logger_;
  UniqueFd read_;
};

// Whoever doesn't read our log mustn't stop us: a peer's goodbyes once blocked the event loop.
TEST(StderrLog, AnUnreadPipeDropsLinesInsteadOfBlocking) {
  PipedStderr stderr_pipe;
  for (int i = 0; i < 2'000; ++i) spdlog::warn("{:0>100}", i);
  const std::string first = stderr_pipe.take();
  EXPECT_NE(first.find("0000"), std::string::npos);
  spdlog::warn("afterwards");
  const std::string next = stderr_pipe.take();
  EXPECT_NE(next.find("lines dropped)"), std::string::npos) << next;
  EXPECT_NE(next.find("afterwards"), std::string::npos) << next;
}

TEST(StderrLog, ALongLineIsCut) {
  PipedStderr stderr_pipe;
  spdlog::warn("{}", std::string(100'000, 'x'));
  const std::string line = stderr_pipe.take();
  EXPECT_EQ(line.size(), 4096U);
  EXPECT_EQ(line.back(), '\n');
}

}  // namespace
}  // namespace kvmend::env::posix
