#include "transport/slice_copier.h"

#include <cstring>

namespace kvmend::transport {
namespace {

class HostCopier final : public SliceCopier {
 public:
  void gather(std::span<const iovec> parts, std::byte* into) override {
    for (const iovec& part : parts) {
      std::memcpy(into, part.iov_base, part.iov_len);
      into += part.iov_len;
    }
  }
  void scatter(const std::byte* from, std::span<const iovec> parts) override {
    for (const iovec& part : parts) {
      std::memcpy(part.iov_base, from, part.iov_len);
      from += part.iov_len;
    }
  }
};

}  // namespace

SliceCopier& host_copier() {
  static HostCopier copier;
  return copier;
}

}  // namespace kvmend::transport
