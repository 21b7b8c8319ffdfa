// XXH3-64 of a payload that comes in pieces. Its value travels in `DataBody::checksum`.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bytes.h"

namespace kvmend::wire {

/// One running checksum. Any one thread at a time.
class Checksum {
 public:
  Checksum() { reset(); }
  void reset();
  void update(Bytes piece);
  [[nodiscard]] std::uint64_t value() const;

 private:
  alignas(64) std::byte state_[576];
};

}  // namespace kvmend::wire
