// For tests: a process that has run out of descriptors.
#pragma once

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

namespace kvmend::env::posix {

/// UBSan's check of a virtual call opens a pipe, and takes a failure to do so for a bad object.
inline constexpr bool kNeedsDescriptorsItself =
#if defined(__has_feature)
#if __has_feature(undefined_behavior_sanitizer)
    true;
#else
    false;
#endif
#else
    false;
#endif

/// Leaves no descriptor free for the time of its life.
class NoDescriptors {
 public:
  /// Whether the place of one that is closed meanwhile can be taken again.
  enum class Closed : bool { kIsLost, kIsFree };

  explicit NoDescriptors(Closed closed = Closed::kIsLost) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    rlimit none = before_;
    none.rlim_cur = 0;
    if (closed == Closed::kIsFree) {
      const int lowest = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
      ::close(lowest);
      none.rlim_cur = static_cast<rlim_t>(lowest);
    }
    ::setrlimit(RLIMIT_NOFILE, &none);
  }
  ~NoDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;

 private:
  rlimit before_{};
};

}  // namespace kvmend::env::posix
