// What KvGate shares with the chunks that wait for it. Any thread.
#pragma once

#include <atomic>
#include <functional>
#include <utility>
#include <vector>

#include "base/thread_annotations.h"
#include "kvmend/kv.h"

namespace kvmend::kv {

class GateState {
 public:
  using Wake = std::move_only_function<void()>;

  [[nodiscard]] bool is_open() const { return open_.load(std::memory_order_acquire); }
  /// Runs `wake` once the gate is open: on the thread that opens it, or at once.
  void when_open(Wake wake) KVM_EXCLUDES(mutex_) {
    {
      const MutexLock lock(mutex_);
      if (!is_open()) {
        waiting_.push_back(std::move(wake));
        return;
      }
    }
    wake();
  }
  void open() KVM_EXCLUDES(mutex_) {
    std::vector<Wake> wakes;
    {
      const MutexLock lock(mutex_);
      open_.store(true, std::memory_order_release);
      wakes = std::exchange(waiting_, {});
    }
    for (Wake& wake : wakes) wake();
  }

 private:
  std::atomic<bool> open_{false};
  Mutex mutex_;
  std::vector<Wake> waiting_ KVM_GUARDED_BY(mutex_);
};

}  // namespace kvmend::kv
