#include "memory/page_set.h"

#include <cstddef>

namespace kvmend::memory {

PageSet::PageSet(std::span<const std::uint32_t> pages) {
  std::size_t runs = 0;
  for (std::size_t i = 0; i < pages.size(); ++i)
    if (i == 0 || pages[i] != pages[i - 1] + 1) ++runs;
  if (runs == 0) return;
  const std::size_t words = pages.back() / 64 + std::size_t{1};
  static_assert(sizeof(Run) == sizeof(std::uint64_t));
  if (words <= runs) {
    bits_.resize(words);
    for (const std::uint32_t page : pages) bits_[page / 64] |= std::uint64_t{1} << (page % 64);
    return;
  }
  runs_.reserve(runs);
  for (const std::uint32_t page : pages) {
    if (runs_.empty() || runs_.back().end != page) runs_.push_back({.begin = page, .end = page});
    ++runs_.back().end;
  }
}

bool PageSet::bits_hold(std::uint32_t first, std::uint32_t last) const {
  if (last / 64 >= bits_.size()) return false;
  for (std::uint32_t word = first / 64; word <= last / 64; ++word) {
    std::uint64_t wanted = ~std::uint64_t{0};
    if (word == first / 64) wanted &= ~std::uint64_t{0} << (first % 64);
    if (word == last / 64) wanted &= ~std::uint64_t{0} >> (63 - last % 64);
    if ((bits_[word] & wanted) != wanted) return false;
  }
  return true;
}

bool PageSet::runs_hold(std::uint32_t first, std::uint32_t last, std::uint32_t& hint) const {
  const auto starts_in = [&](std::size_t run) {
    return run < runs_.size() && runs_[run].begin <= first && first < runs_[run].end;
  };
  if (!starts_in(hint)) {
    if (starts_in(std::size_t{hint} + 1)) {
      ++hint;
    } else {
      // Branchless: orders of pages are random to the predictor.
      std::uint32_t at = 0;
      for (auto n = static_cast<std::uint32_t>(runs_.size()); n > 1;) {
        const std::uint32_t half = n / 2;
        at = runs_[at + half].begin <= first ? at + half : at;
        n -= half;
      }
      if (!starts_in(at)) return false;
      hint = at;
    }
  }
  return last < runs_[hint].end;
}

}  // namespace kvmend::memory
