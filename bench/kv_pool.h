// Pools and rooms of `./dev bench kv`: a kv component of equal buffers and a small aux one, the
// page sets of each slot (one request at a time), and what a page must hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kvmend/engine.h"
#include "kvmend/kv.h"
#include "pages.h"

namespace kvmend::bench {

/// One case: what a request moves and how many run at once.
struct KvShape {
  std::string name;
  std::uint32_t pages = 1;
  std::uint32_t buffers = 1;
  std::uint32_t item_bytes = 64;
  std::uint32_t concurrency = 1;
  std::uint32_t requests = 100;  ///< per round
  /// 0: both sides alike. Else decode is one of so many tensor ranks and prefill the only one of
  /// its side: every page of prefill's is so many times as large, and a slice is what a token has
  /// of decode's heads.
  std::uint32_t decode_ranks = 0;
  std::uint64_t stage_below = 0;  ///< TcpOptions::stage_below_bytes

  [[nodiscard]] std::size_t request_bytes() const {
    return std::size_t{pages} * buffers * item_bytes;
  }
};

class BenchPool {
 public:
  static constexpr std::uint32_t kAuxBytes = 64;

  /// Registers the memory with the engine (raw access open, so that the engine alone can be
  /// measured on the same slices). Gives up on errors.
  BenchPool(const KvShape& shape, Engine& engine, KvRole role = KvRole::kDecode);

  [[nodiscard]] KvLayout layout() const;
  /// Where that page lies at decode, from its first one on.
  [[nodiscard]] std::uint64_t decode_offset(std::uint32_t buffer, std::uint32_t page) const {
    return (std::uint64_t{buffer} * items_ + page) * shape_.item_bytes;
  }
  /// The pages of a slot, in the order of its requests' tokens: random, of its own. `side` makes
  /// those of prefill and decode differ.
  [[nodiscard]] std::vector<std::uint32_t> pages_of(std::uint32_t slot, std::uint64_t side) const;
  [[nodiscard]] std::byte* page(std::uint32_t buffer, std::uint32_t page) const;
  /// Writes what `holds` looks for.
  void fill(const std::vector<std::uint32_t>& pages, std::uint64_t seed);
  void wipe(const std::vector<std::uint32_t>& pages);
  [[nodiscard]] bool holds(const std::vector<std::uint32_t>& pages, std::uint64_t seed) const;
  [[nodiscard]] std::size_t size() const { return memory_->size(); }

 private:
  [[nodiscard]] std::uint64_t word(std::uint64_t seed, std::uint32_t buffer,
                                   std::size_t position) const;
  static constexpr std::uint32_t kTokens = 16;  // of a page
  /// Bytes of prefill's page that belong to decode's heads, in decode's order.
  template <class Word>
  void each_word(std::uint32_t buffer, std::uint32_t page, const Word& word) const;
  KvShape shape_;
  bool whole_heads_;  // of every decode rank
  std::uint32_t page_bytes_;
  std::uint32_t items_;
  std::unique_ptr<Buffer> memory_;
};

/// Ends the process with a message.
[[noreturn]] void stop_bench(const std::string& what);

/// An engine of the benchmark: tcp unless `local`.
[[nodiscard]] std::unique_ptr<Engine> bench_engine(bool local, std::uint64_t pace = 0,
                                                   std::uint64_t stage_below = 0);

}  // namespace kvmend::bench
