// Rules of the interpreter lock: whatever may block runs without it, and kvmend's own threads never
// take it. So a Python caller that holds the lock for long delays nobody but itself.
#pragma once

#include <cxxabi.h>
#include <nanobind/nanobind.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <future>
#include <optional>

#include "errors.h"

namespace kvmend::python {

/// Gives the interpreter lock up while it lives. Where the interpreter ends meanwhile, taking the
/// lock back ends the thread (a daemon one) by a forced unwind, which can't pass through C++ code
/// that mustn't throw: such a thread stands still until the process has gone, as from Python 3.13
/// on.
class WithoutLock {
 public:
  WithoutLock() : thread_(PyEval_SaveThread()) {}
  WithoutLock(const WithoutLock&) = delete;
  WithoutLock& operator=(const WithoutLock&) = delete;
  ~WithoutLock() {
    try {
      PyEval_RestoreThread(thread_);
    } catch (abi::__forced_unwind&) {
      while (true) ::pause();
    }
  }

 private:
  PyThreadState* thread_;
};

/// Runs `work` without the interpreter lock. `work` must not touch Python objects.
template <class Work>
auto unlocked(Work&& work) {
  const WithoutLock without_lock;
  return work();
}

/// A blocked call looks at Python's signals (Ctrl-C) this often.
inline constexpr std::chrono::nanoseconds kSignalPoll = std::chrono::milliseconds(100);
/// Longer waits are cut to this: nobody waits a year.
inline constexpr double kMaxSeconds = 365.0 * 24 * 3600;

/// Seconds as Python gives them; `std::nullopt` and anything longer than a year mean a year.
inline std::chrono::nanoseconds to_duration(std::optional<double> seconds) {
  if (seconds && std::isnan(*seconds))
    throw StatusError({Code::kInvalidArgument, Origin::kCaller, "a time of nan seconds"});
  const double bounded = std::clamp(seconds.value_or(kMaxSeconds), 0.0, kMaxSeconds);
  return std::chrono::nanoseconds(static_cast<std::int64_t>(bounded * 1e9));
}

/// Calls `wait_for(duration)` without the lock until it returns something or `timeout` has passed,
/// and lets Python handle signals in between (throws what their handlers raise).
template <class WaitFor>
auto interruptible_wait(std::chrono::nanoseconds timeout, WaitFor&& wait_for)
    -> decltype(wait_for(timeout)) {
  const auto until = std::chrono::steady_clock::now() + timeout;
  while (true) {
    const std::chrono::nanoseconds left =
        std::max<std::chrono::nanoseconds>(until - std::chrono::steady_clock::now(), {});
    auto result = unlocked([&] { return wait_for(std::min(left, kSignalPoll)); });
    if (result || left <= kSignalPoll) return result;
    if (PyErr_CheckSignals() != 0) throw nanobind::python_error();
  }
}

/// What a future gives, waited for without the lock; Ctrl-C ends the wait, not what it waits for.
template <class T>
T settled(std::future<T>&& future) {
  while (!interruptible_wait(to_duration(kMaxSeconds), [&](std::chrono::nanoseconds step) {
    return future.wait_for(step) == std::future_status::ready;
  })) {
  }
  return future.get();
}

}  // namespace kvmend::python
