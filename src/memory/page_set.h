// The pages of one component of a grant, for the question that every slice of every frame asks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvmend::memory {

/// Built once, then read only. Any thread.
///
/// One bit for each page up to the last one, where that takes no more memory than the runs of pages
/// that follow each other: a pool's pages are handed out all over it, and then a search among the
/// runs would be most of what a slice costs.
class PageSet {
 public:
  /// `pages` sorted and unique.
  explicit PageSet(std::span<const std::uint32_t> pages);

  /// Whether all of first, first + 1, ... last are in the set; first <= last. `hint` is where the
  /// last question ended (any value is correct). O(1) for bits and for questions in order (and the
  /// pages asked for), else O(log runs).
  [[nodiscard]] bool holds(std::uint32_t first, std::uint32_t last, std::uint32_t& hint) const;

  [[nodiscard]] bool dense() const { return !bits_.empty(); }

 private:
  // Pages [begin, end) in a row.
  struct Run {
    std::uint32_t begin = 0;
    std::uint32_t end = 0;
  };
  [[nodiscard]] bool bits_hold(std::uint32_t first, std::uint32_t last) const;
  [[nodiscard]] bool runs_hold(std::uint32_t first, std::uint32_t last, std::uint32_t& hint) const;

  // One of them is empty.
  std::vector<std::uint64_t> bits_;
  std::vector<Run> runs_;  // sorted
};

inline bool PageSet::holds(std::uint32_t first, std::uint32_t last, std::uint32_t& hint) const {
  if (bits_.empty()) return runs_hold(first, last, hint);
  if (first != last) return bits_hold(first, last);
  return first / 64 < bits_.size() && (bits_[first / 64] >> (first % 64) & 1U) != 0;
}

}  // namespace kvmend::memory
