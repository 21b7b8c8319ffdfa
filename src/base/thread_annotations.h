// Clang's thread-safety annotations (checked by -Wthread-safety; nothing elsewhere) and the mutex
// that carries them.
#pragma once

#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define KVM_TSA(x) __attribute__((x))
#else
#define KVM_TSA(x)
#endif

#define KVM_CAPABILITY(x) KVM_TSA(capability(x))
#define KVM_SCOPED_CAPABILITY KVM_TSA(scoped_lockable)
#define KVM_GUARDED_BY(x) KVM_TSA(guarded_by(x))
#define KVM_REQUIRES(...) KVM_TSA(requires_capability(__VA_ARGS__))
#define KVM_ACQUIRE(...) KVM_TSA(acquire_capability(__VA_ARGS__))
#define KVM_RELEASE(...) KVM_TSA(release_capability(__VA_ARGS__))
#define KVM_EXCLUDES(...) KVM_TSA(locks_excluded(__VA_ARGS__))
#define KVM_NO_THREAD_SAFETY_ANALYSIS KVM_TSA(no_thread_safety_analysis)

namespace kvmend {

class KVM_CAPABILITY("mutex") Mutex {
 public:
  void lock() KVM_ACQUIRE() { mutex_.lock(); }
  void unlock() KVM_RELEASE() { mutex_.unlock(); }

 private:
  std::mutex mutex_;
};

class KVM_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) KVM_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() KVM_RELEASE() { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

/// Waits on a `Mutex` that the caller holds.
using CondVar = std::condition_variable_any;

}  // namespace kvmend
