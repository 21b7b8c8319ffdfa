#include "transport/slice_copier.h"

#include "memory/guarded.h"

namespace kvmend::transport {
namespace {

class HostCopier final : public SliceCopier {
 public:
  bool gather(std::span<const iovec> parts, std::byte* into) override {
    return memory::guarded_load(into, parts);
  }
  bool scatter(Bytes from, std::span<const iovec> parts) override {
    return memory::guarded_store(parts, from);
  }
};

}  // namespace

SliceCopier& host_copier() {
  static HostCopier copier;
  return copier;
}

}  // namespace kvmend::transport
