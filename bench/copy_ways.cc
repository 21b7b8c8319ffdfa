// Ways to copy scattered pages of a peer's mapped pool into memory that may be unmapped at any
// moment: user-space stores, which raise a signal then, and calls that return EFAULT. One JSON
// object for each way, page size and number of threads; docs/decisions/0014 quotes them.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "pages.h"
#include "pair.h"
#include "transport/local/fast_copy.h"

namespace kvmend::bench {
namespace {

constexpr std::size_t kBytes = 256U << 20U;
constexpr std::size_t kBatch = 128U << 10U;  // as the local transport's step

struct Memory {
  int fd = -1;
  std::byte* from = nullptr;  // the memfd, mapped read-only
  std::byte* to = nullptr;
};

std::byte* map(int fd, int protection) {
  void* at = mmap(nullptr, kBytes, protection, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) std::abort();
  madvise(at, kBytes, MADV_HUGEPAGE);
  return static_cast<std::byte*>(at);
}

Memory make_memory() {
  Memory m;
  m.fd = memfd_create("source", MFD_CLOEXEC);
  if (m.fd < 0 || ftruncate(m.fd, kBytes) != 0) std::abort();
  fill({map(m.fd, PROT_READ | PROT_WRITE), kBytes}, 1);
  m.from = map(m.fd, PROT_READ);
  const int target = memfd_create("target", MFD_CLOEXEC);
  if (target < 0 || ftruncate(target, kBytes) != 0) std::abort();
  m.to = map(target, PROT_READ | PROT_WRITE);
  std::memset(m.to, 1, kBytes);
  return m;
}

struct Part {
  std::size_t page_bytes;
  std::span<const std::uint32_t> src;
  std::span<const std::uint32_t> dst;
};
using Way = std::function<bool(const Memory&, const Part&)>;

bool by_stores(const Memory& m, const Part& part) {
  for (std::size_t i = 0; i < part.src.size(); ++i)
    transport::local::fast_copy(m.to + part.dst[i] * part.page_bytes,
                                m.from + part.src[i] * part.page_bytes, part.page_bytes);
  transport::local::finish_copies();
  return true;
}

bool by_memcpy(const Memory& m, const Part& part) {
  for (std::size_t i = 0; i < part.src.size(); ++i)
    std::memcpy(m.to + part.dst[i] * part.page_bytes, m.from + part.src[i] * part.page_bytes,
                part.page_bytes);
  return true;
}

bool by_process_vm(const Memory& m, const Part& part) {
  std::vector<iovec> to;
  std::vector<iovec> from;
  const std::size_t batch = std::max<std::size_t>(kBatch / part.page_bytes, 1);
  for (std::size_t i = 0; i < part.src.size();) {
    to.clear();
    from.clear();
    for (; i < part.src.size() && to.size() < batch; ++i) {
      to.push_back({m.to + part.dst[i] * part.page_bytes, part.page_bytes});
      from.push_back({m.from + part.src[i] * part.page_bytes, part.page_bytes});
    }
    const ssize_t n = process_vm_readv(getpid(), to.data(), to.size(), from.data(), from.size(), 0);
    if (n != static_cast<ssize_t>(to.size() * part.page_bytes)) return false;
  }
  return true;
}

bool by_pread(const Memory& m, const Part& part) {
  for (std::size_t i = 0; i < part.src.size(); ++i)
    if (pread(m.fd, m.to + part.dst[i] * part.page_bytes, part.page_bytes,
              static_cast<off_t>(part.src[i] * part.page_bytes)) !=
        static_cast<ssize_t>(part.page_bytes))
      return false;
  return true;
}

double seconds_of(const Way& way, const Memory& m, std::size_t page_bytes, std::size_t threads) {
  const auto src = random_order(kBytes / page_bytes, 1);
  const auto dst = random_order(kBytes / page_bytes, 2);
  const double start = now_seconds();
  {
    std::vector<std::jthread> movers;
    for (std::size_t t = 0; t < threads; ++t) {
      const std::size_t from = src.size() * t / threads;
      const std::size_t count = src.size() * (t + 1) / threads - from;
      movers.emplace_back([&, from, count] {
        const Part part{page_bytes, std::span(src).subspan(from, count),
                        std::span(dst).subspan(from, count)};
        if (!way(m, part)) std::abort();
      });
    }
  }
  const double seconds = now_seconds() - start;
  if (!holds({m.to, kBytes}, page_bytes, src, dst, 1)) std::abort();
  return seconds;
}

}  // namespace
}  // namespace kvmend::bench

int main(int argc, char** argv) {
  using namespace kvmend::bench;
  int rounds = 7;
  CLI::App app{"Ways to copy pages of a mapped pool"};
  app.add_option("--reps", rounds, "measured rounds");
  CLI11_PARSE(app, argc, argv);
  const Memory memory = make_memory();
  const std::vector<std::pair<const char*, Way>> ways{{"stores", by_stores},
                                                      {"memcpy", by_memcpy},
                                                      {"process_vm_readv", by_process_vm},
                                                      {"pread", by_pread}};
  for (const std::size_t page_bytes : {4096UL, 65536UL, 1048576UL}) {
    for (const std::size_t threads : {1UL, 2UL}) {
      std::vector<std::vector<double>> gbps(ways.size());
      for (int r = -1; r < rounds; ++r)
        for (std::size_t w = 0; w < ways.size(); ++w) {
          const double s = seconds_of(ways[w].second, memory, page_bytes, threads);
          if (r >= 0) gbps[w].push_back(static_cast<double>(kBytes) / s / 1e9);
        }
      for (std::size_t w = 0; w < ways.size(); ++w) {
        const nlohmann::json row{{"way", ways[w].first},
                                 {"page_bytes", page_bytes},
                                 {"threads", threads},
                                 {"gbps", median(gbps[w])}};
        std::printf("%s\n", row.dump().c_str());
        std::fflush(stdout);
      }
    }
  }
  return 0;
}
