#include "transport/local/copy_workers.h"

#include <pthread.h>
#include <sched.h>

#include <utility>

#include "base/contain.h"

namespace kvmend::transport::local {
namespace {

using namespace std::chrono_literals;

// The loop is told of finished chunks when so many bytes are done, or when there is nothing left to
// copy: waking it for each would take a core from the copying. Long chunks are in the middle of
// long transfers, for which nobody waits yet.
constexpr std::uint64_t kTellBytes = 4U << 20U;
constexpr std::uint64_t kTellBytesOfLong = 16U << 20U;
constexpr std::uint64_t kLongBytes = 1U << 20U;
constexpr auto kTellWithin = 20ms;  // a slow machine: the sender waits for a sign of life
// Before a thread sleeps it looks for more, about 20 microseconds long: less than a wake-up costs.
constexpr int kPausesBeforeSleep = 600;
constexpr int kPausesBeforeYield = 30;

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Gives this thread every other core of those it may use, so that the two never share one: woken by
// the loop's thread, both would start where that runs.
void keep_apart(std::size_t reader) {
  cpu_set_t all;
  if (::sched_getaffinity(0, sizeof all, &all) != 0 || CPU_COUNT(&all) < 2) return;
  cpu_set_t own;
  CPU_ZERO(&own);
  std::size_t seen = 0;
  for (std::size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &all) && seen++ % kMaxCopyThreads == reader) CPU_SET(cpu, &own);
  static_cast<void>(::sched_setaffinity(0, sizeof own, &own));
}

}  // namespace

CopyWorkers::CopyWorkers(env::EventLoop& loop, Board& board,
                         std::function<void(std::vector<JobPtr>&)> done)
    : loop_(loop), board_(board), done_(std::move(done)) {}

CopyWorkers::~CopyWorkers() {
  {
    const MutexLock lock(mutex_);
    stop_.store(true);
    queue_.clear();
  }
  changed_.notify_all();
  threads_.clear();
}

void CopyWorkers::submit(JobPtr job) {
  bool wake = false;
  std::size_t queued = 0;
  {
    const MutexLock lock(mutex_);
    queue_.push_back(std::move(job));
    queued = queue_.size();
    waiting_.store(queued);
    wake = asleep_ > 0;
  }
  if (wake) changed_.notify_one();
  if (threads_.size() < kMaxCopyThreads && queued > threads_.size()) {
    const std::size_t reader = threads_.size();
    contain("starting a copy thread", [&] {
      threads_.emplace_back([this, reader] {
        pthread_setname_np(pthread_self(), "kvmend-copy");
        keep_apart(reader);
        work(reader);
      });
    });
    if (threads_.empty()) copy_here();
  }
}

// No thread is to be had: slow is better than never.
void CopyWorkers::copy_here() {
  std::vector<JobPtr> jobs;
  {
    const MutexLock lock(mutex_);
    jobs.assign(queue_.begin(), queue_.end());
    queue_.clear();
    waiting_.store(0);
  }
  for (const JobPtr& job : jobs) job->run(loop_, board_, kMaxCopyThreads);
  done_(jobs);
}

CopyWorkers::JobPtr CopyWorkers::next_job() {
  for (int i = 0; i < kPausesBeforeSleep && waiting_.load(std::memory_order_relaxed) == 0; ++i) {
    if (stop_.load(std::memory_order_relaxed)) return nullptr;
    pause_briefly();
    if (i % kPausesBeforeYield == 0) ::sched_yield();  // the loop may need this core to go on
  }
  const MutexLock lock(mutex_);
  ++asleep_;
  while (queue_.empty() && !stop_.load()) changed_.wait(mutex_);
  --asleep_;
  if (stop_.load()) return nullptr;
  JobPtr job = std::move(queue_.front());
  queue_.pop_front();
  waiting_.store(queue_.size());
  return job;
}

void CopyWorkers::work(std::size_t reader) {
  while (JobPtr job = next_job()) {
    contain("copying", [&] { job->run(loop_, board_, reader); });
    // The loop waits for each of them: without memory to say so, it is said again.
    while (!hand_in(job) && !stop_.load()) ::sched_yield();
  }
}

bool CopyWorkers::hand_in(JobPtr& job) {
  bool tell_now = false;
  const bool kept = contain("finishing a copy", [&] {
    const MutexLock lock(mutex_);
    if (job) {
      const std::uint64_t bytes = job->request().bytes;
      if (finished_.empty()) tell_at_ = kTellBytesOfLong;
      if (bytes <= kLongBytes) tell_at_ = kTellBytes;
      finished_.push_back(job);
      untold_bytes_ += bytes;
      job.reset();
    }
    const Time now = loop_.now();
    tell_now =
        !told_ && (queue_.empty() || untold_bytes_ >= tell_at_ || now >= last_told_ + kTellWithin);
    if (!tell_now) return;
    told_ = true;
    last_told_ = now;
  });
  if (!kept || !tell_now) return kept;
  if (contain("telling of copies", [this] { tell(); })) return true;
  const MutexLock lock(mutex_);
  told_ = false;
  return false;
}

void CopyWorkers::tell() {
  loop_.post([this, alive = std::weak_ptr(alive_)] {
    if (alive.expired()) return;
    std::vector<JobPtr> finished;
    {
      const MutexLock lock(mutex_);
      finished.swap(finished_);
      untold_bytes_ = 0;
      told_ = false;
    }
    done_(finished);
  });
}

}  // namespace kvmend::transport::local
