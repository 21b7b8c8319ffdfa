// Two processes that measure something together: the parent starts transfers, the child is their
// target. They share a page for barriers, results and small facts.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace kvmend::bench {

/// Shared between both sides.
struct Shared {
  std::atomic<std::uint32_t> waiting{0};
  std::atomic<std::uint32_t> round{0};
  std::atomic<std::uint32_t> command{0};
  std::atomic<std::uint32_t> failed{0};
  double cpu_seconds[2] = {0, 0};
  std::uint64_t numbers[16] = {};
  char text[256] = {};
};

/// CPU time (user + system) of this process, all threads, in seconds.
[[nodiscard]] double process_cpu_seconds();
/// Monotonic wall time in seconds.
[[nodiscard]] double now_seconds();
/// Resident memory of this process that isn't shared memory, in bytes: its pools and the mapped
/// ones of peers don't count.
[[nodiscard]] std::uint64_t private_bytes();
[[nodiscard]] std::uint32_t thread_count();

/// Middle value; the mean of the two middle ones for an even count. 0 when empty.
[[nodiscard]] double median(std::vector<double> values);
/// The value below which `share` of the values lie.
[[nodiscard]] double percentile(std::vector<double> values, double share);

class Pair {
 public:
  /// Maps the shared page. `pin`: parent on CPU 0, child on CPU 1.
  explicit Pair(bool pin);
  ~Pair();
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;

  /// Forks; the child runs `child` and exits. Call before any thread exists.
  void fork_child(const std::function<void()>& child);
  /// Both sides meet here; gives up (and ends the process) when the other side has died.
  void barrier();
  /// Lets all threads of this process use every core.
  static void unpin();
  Shared& shared() { return *shared_; }
  [[nodiscard]] bool is_parent() const { return parent_; }
  /// Waits for the child; false when it failed.
  bool join();

 private:
  void pin_to(int cpu) const;
  Shared* shared_ = nullptr;
  pid_t child_ = -1;
  bool parent_ = true;
  bool pin_;
};

}  // namespace kvmend::bench
