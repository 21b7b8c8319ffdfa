// Small pieces of memory that lie near each other, as stretches: a system call that copies a list
// of pieces spends its time per piece, so that reading across short gaps and picking the pieces out
// afterwards is cheaper.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvmend::transport {

/// Whether a piece at `begin` continues a stretch that ends at `end`. Longer gaps cost more to read
/// than another entry, and shorter than a page none holds a page that no piece touches.
[[nodiscard]] inline bool continues_stretch(const void* end, const void* begin) {
  constexpr std::uintptr_t kLongestGap = 2'048;
  const auto from = reinterpret_cast<std::uintptr_t>(end);
  const auto to = reinterpret_cast<std::uintptr_t>(begin);
  return to >= from && to - from <= kLongestGap;
}

[[nodiscard]] inline const void* end_of(const iovec& piece) {
  return static_cast<const std::byte*>(piece.iov_base) + piece.iov_len;
}

/// Bytes from the end of one piece to the next, which continues its stretch.
[[nodiscard]] inline std::size_t gap_between(const iovec& before, const iovec& piece) {
  return static_cast<std::size_t>(static_cast<const std::byte*>(piece.iov_base) -
                                  static_cast<const std::byte*>(end_of(before)));
}

struct StretchSum {
  std::size_t count = 0;
  std::size_t bytes = 0;  ///< with the gaps
};

[[nodiscard]] inline StretchSum sum_stretches(std::span<const iovec> pieces) {
  StretchSum sum;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    sum.bytes += pieces[i].iov_len;
    if (i > 0 && continues_stretch(end_of(pieces[i - 1]), pieces[i].iov_base)) {
      sum.bytes += gap_between(pieces[i - 1], pieces[i]);
    } else {
      ++sum.count;
    }
  }
  return sum;
}

/// Whether reading the stretches of these small pieces costs less than an entry for each of them
/// (docs/decisions/0020-staging-in-the-lane.md): few stretches, and little of them in vain.
[[nodiscard]] inline bool is_worth_gathering(std::span<const iovec> pieces) {
  constexpr std::size_t kReadPerPiece = 1'024;
  const StretchSum sum = sum_stretches(pieces);
  return sum.count * 2 <= pieces.size() && sum.bytes < pieces.size() * kReadPerPiece;
}

/// The stretches of some pieces, for one call, and where each piece lies in what that reads.
class Stretches {
 public:
  static constexpr std::size_t kMaxPieces = 1024;

  /// Takes pieces from the front as long as their stretches hold at most `most` bytes; how many.
  std::size_t fill(std::span<const iovec> pieces, std::size_t most) {
    count_ = bytes_ = 0;
    std::size_t taken = 0;
    for (; taken < std::min(pieces.size(), kMaxPieces); ++taken) {
      const iovec& piece = pieces[taken];
      const bool more = taken > 0 && continues_stretch(end_of(pieces[taken - 1]), piece.iov_base);
      const std::size_t gap = more ? gap_between(pieces[taken - 1], piece) : 0;
      if (bytes_ + gap + piece.iov_len > most) break;
      at_[taken] = static_cast<std::uint32_t>(bytes_ + gap);
      if (more) {
        spans_[count_ - 1].iov_len += gap + piece.iov_len;
      } else {
        spans_[count_++] = piece;
      }
      bytes_ += gap + piece.iov_len;
    }
    return taken;
  }
  [[nodiscard]] std::span<const iovec> spans() const { return {spans_.data(), count_}; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  /// Where the piece begins, among the bytes of all stretches.
  [[nodiscard]] std::size_t at(std::size_t piece) const { return at_[piece]; }

 private:
  std::array<iovec, kMaxPieces> spans_;
  std::array<std::uint32_t, kMaxPieces> at_;
  std::size_t count_ = 0;
  std::size_t bytes_ = 0;
};

}  // namespace kvmend::transport
