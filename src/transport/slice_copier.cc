#include "transport/slice_copier.h"

#include <cstring>
#include <memory>

#include "memory/guarded.h"
#include "transport/stretches.h"

namespace kvmend::transport {
namespace {

class HostCopier final : public SliceCopier {
 public:
  bool gather(std::span<const iovec> parts, std::byte* into) override {
    constexpr std::size_t kReadBytes = 256U << 10;
    thread_local Stretches stretches;
    thread_local const auto read = std::make_unique_for_overwrite<std::byte[]>(kReadBytes);
    while (!parts.empty()) {
      const std::size_t taken = stretches.fill(parts, kReadBytes);
      if (taken == 0) return memory::guarded_load(into, parts);  // a part that isn't small
      if (!memory::guarded_load(read.get(), stretches.spans())) return false;
      for (std::size_t i = 0; i < taken; ++i) {
        std::memcpy(into, read.get() + stretches.at(i), parts[i].iov_len);
        into += parts[i].iov_len;
      }
      parts = parts.subspan(taken);
    }
    return true;
  }
  bool scatter(Bytes from, std::span<const iovec> parts) override {
    return memory::guarded_store(parts, from);
  }
};

}  // namespace

void join_parts(std::vector<iovec>& parts) {
  std::size_t last = 0;
  for (std::size_t i = 1; i < parts.size(); ++i) {
    if (static_cast<std::byte*>(parts[last].iov_base) + parts[last].iov_len == parts[i].iov_base) {
      parts[last].iov_len += parts[i].iov_len;
    } else {
      parts[++last] = parts[i];
    }
  }
  if (!parts.empty()) parts.resize(last + 1);
}

SliceCopier& host_copier() {
  static HostCopier copier;
  return copier;
}

}  // namespace kvmend::transport
