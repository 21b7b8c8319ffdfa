// A socket buffer: bytes in at the back, out at the front.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"

namespace kvmend::env::sim {

class ByteQueue {
 public:
  [[nodiscard]] std::size_t size() const { return bytes_.size() - head_; }
  [[nodiscard]] bool empty() const { return size() == 0; }

  void append(Bytes more) { bytes_.insert(bytes_.end(), more.begin(), more.end()); }

  /// `length` bytes from `offset`, valid until the next change.
  [[nodiscard]] Bytes peek(std::size_t offset, std::size_t length) const {
    KVM_CHECK(offset + length <= size());
    return Bytes(bytes_).subspan(head_ + offset, length);
  }

  void consume(std::size_t length) {
    KVM_CHECK(length <= size());
    head_ += length;
    // Moving the rest only when it is the smaller part keeps the cost per byte constant.
    if (head_ * 2 < bytes_.size()) return;
    bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(head_));
    head_ = 0;
  }

  void clear() {
    bytes_.clear();
    head_ = 0;
  }

 private:
  std::vector<std::byte> bytes_;
  std::size_t head_ = 0;
};

}  // namespace kvmend::env::sim
