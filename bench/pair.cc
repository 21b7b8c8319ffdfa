#include "pair.h"

#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <new>
#include <string>
#include <thread>

namespace kvmend::bench {

double process_cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::uint64_t private_bytes() {
  std::ifstream status("/proc/self/status");
  std::string word;
  std::uint64_t kib = 0;
  while (status >> word) {
    std::uint64_t value = 0;
    if (word == "RssAnon:" || word == "RssFile:") status >> value;
    kib += value;
  }
  return kib << 10U;
}

std::uint32_t thread_count() {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word) {
    if (word != "Threads:") continue;
    std::uint32_t count = 0;
    status >> count;
    return count;
  }
  return 0;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  const auto index = static_cast<std::size_t>(share * static_cast<double>(values.size()));
  return values[std::min(index, values.size() - 1)];
}

Pair::Pair(bool pin) : pin_(pin) {
  void* page =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) std::abort();
  shared_ = new (page) Shared;
}

Pair::~Pair() {
  if (parent_ && child_ > 0) {
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
  }
}

void Pair::pin_to(int cpu) const {
  if (!pin_) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<unsigned>(cpu) % static_cast<unsigned>(sysconf(_SC_NPROCESSORS_ONLN)), &set);
  sched_setaffinity(0, sizeof set, &set);
}

void Pair::unpin() {
  cpu_set_t all;
  CPU_ZERO(&all);
  for (long cpu = 0; cpu < sysconf(_SC_NPROCESSORS_ONLN); ++cpu)
    CPU_SET(static_cast<unsigned long>(cpu), &all);
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task"))
    sched_setaffinity(std::stoi(thread.path().filename().string()), sizeof all, &all);
}

void Pair::fork_child(const std::function<void()>& child) {
  std::fflush(nullptr);
  child_ = fork();
  if (child_ == 0) {
    parent_ = false;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    pin_to(1);
    child();
    std::fflush(nullptr);
    _exit(0);
  }
  pin_to(0);
}

void Pair::barrier() {
  const std::uint32_t round = shared_->round.load();
  if (shared_->waiting.fetch_add(1) == 1) {
    shared_->waiting.store(0);
    shared_->round.fetch_add(1);
    return;
  }
  while (shared_->round.load() == round) {
    if (parent_ && waitpid(child_, nullptr, WNOHANG) == child_) {
      child_ = -1;
      std::fprintf(stderr, "the target process died\n");
      std::exit(1);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

bool Pair::join() {
  int status = 0;
  if (child_ > 0) waitpid(child_, &status, 0);
  child_ = -1;
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 && shared_->failed.load() == 0;
}

}  // namespace kvmend::bench
