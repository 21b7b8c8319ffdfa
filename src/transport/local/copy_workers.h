// The copy threads of an engine: at most two, started when there is something to copy.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/thread_annotations.h"
#include "env/event_loop.h"
#include "transport/local/board.h"
#include "transport/local/copy_job.h"

namespace kvmend::transport::local {

inline constexpr std::size_t kMaxCopyThreads = 2;

/// Loop thread, but for the threads' own part.
class CopyWorkers {
 public:
  using JobPtr = std::shared_ptr<CopyJob>;
  /// `done` runs on the loop thread with jobs that are over, in batches.
  CopyWorkers(env::EventLoop& loop, Board& board, std::function<void(std::vector<JobPtr>&)> done);
  ~CopyWorkers();  ///< ends after the step that is being copied
  CopyWorkers(const CopyWorkers&) = delete;
  CopyWorkers& operator=(const CopyWorkers&) = delete;

  void submit(JobPtr job);
  /// Copies at once, here. `job` isn't given to `done`.
  void run_inline(CopyJob& job) { job.run(loop_, board_, kMaxCopyThreads); }
  [[nodiscard]] std::size_t threads() const { return threads_.size(); }

 private:
  void work(std::size_t reader);
  JobPtr next_job();
  void copy_here();
  bool hand_in(JobPtr& job);
  void tell();

  env::EventLoop& loop_;
  Board& board_;
  std::function<void(std::vector<JobPtr>&)> done_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // loop thread

  Mutex mutex_;
  CondVar changed_;
  std::deque<JobPtr> queue_ KVM_GUARDED_BY(mutex_);
  std::vector<JobPtr> finished_ KVM_GUARDED_BY(mutex_);
  std::uint64_t untold_bytes_ KVM_GUARDED_BY(mutex_) = 0;
  std::uint64_t tell_at_ KVM_GUARDED_BY(mutex_) = 0;
  Time last_told_ KVM_GUARDED_BY(mutex_){};
  std::size_t asleep_ KVM_GUARDED_BY(mutex_) = 0;
  bool told_ KVM_GUARDED_BY(mutex_) = false;  // the loop will take what is finished
  std::atomic<std::size_t> waiting_{0};       // hint for spinning
  std::atomic<bool> stop_{false};
  std::vector<std::jthread> threads_;  // last: joined first
};

}  // namespace kvmend::transport::local
