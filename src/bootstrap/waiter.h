// A pause that another thread can end.
#pragma once

#include "base/thread_annotations.h"
#include "base/time.h"

namespace kvmend::bootstrap {

/// Any thread. An interface so that tests pause in virtual time.
class Waiter {
 public:
  virtual ~Waiter() = default;
  /// Waits for `pause`; false if it was cancelled, before or meanwhile.
  virtual bool wait(Duration pause) = 0;
};

/// The real one.
class CancellableWaiter final : public Waiter {
 public:
  bool wait(Duration pause) override {
    MutexLock lock(mutex_);
    // The mutex is held whenever the condition is looked at; the analysis can't see through it.
    return !changed_.wait_for(mutex_, pause,
                              [this]() KVM_NO_THREAD_SAFETY_ANALYSIS { return cancelled_; });
  }
  /// Ends every wait, now and later.
  void cancel() {
    {
      MutexLock lock(mutex_);
      cancelled_ = true;
    }
    changed_.notify_all();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool cancelled_ KVM_GUARDED_BY(mutex_) = false;
};

}  // namespace kvmend::bootstrap
