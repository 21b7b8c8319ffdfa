// Small frames between two loops that are awake: a ring in each one's board, written by its owner
// alone. A frame costs no system call and no wake-up; to a loop that sleeps they go by the stream.
//
// The producer writes an entry and then looks whether the consumer is awake; a consumer that is
// about to sleep says so and then looks for entries (sequentially consistent). So either the
// producer rings the bell, or the consumer finds the entry.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

#include "base/bytes.h"

namespace kvmend::transport::local {

inline constexpr std::size_t kRingEntries = 16;
inline constexpr std::size_t kRingFrameBytes = 232;
inline constexpr std::size_t kRings = 64;  // of a board: links beyond that do without

/// As it lies in its owner's board.
struct alignas(64) RingLayout {
  struct alignas(64) Entry {
    std::atomic<std::uint64_t> turn;  // position + 1 once it is written
    std::uint64_t lane;
    std::uint32_t size;
    std::array<std::byte, kRingFrameBytes> bytes;
  };
  std::atomic<std::uint64_t> taken;  // of the other side's entries, by this one's owner
  std::array<Entry, kRingEntries> entries;
};

struct RingFrame {
  std::uint64_t lane = 0;
  std::uint32_t size = 0;
  std::array<std::byte, kRingFrameBytes> bytes;
  [[nodiscard]] Bytes view() const { return Bytes(bytes).first(size); }
};

/// Both directions of a link: our ring and, read-only, the peer's. Loop thread.
class RingPair {
 public:
  /// `own` is set back: nothing of an earlier link is left in it.
  RingPair(RingLayout& own, const RingLayout& peer) : own_(own), peer_(peer) {}

  /// False: it is too long, or the peer hasn't taken the earlier ones.
  bool put(std::uint64_t lane, Bytes frame) {
    const std::uint64_t behind = put_ - peer_.taken.load();
    if (frame.size() > kRingFrameBytes || behind >= kRingEntries) return false;
    RingLayout::Entry& entry = own_.entries[put_ % kRingEntries];
    entry.lane = lane;
    entry.size = static_cast<std::uint32_t>(frame.size());
    std::memcpy(entry.bytes.data(), frame.data(), frame.size());
    entry.turn.store(++put_);
    return true;
  }
  [[nodiscard]] bool ready() const {
    return peer_.entries[got_ % kRingEntries].turn.load() == got_ + 1;
  }
  /// The next frame, copied before it is looked at: the peer may go on writing.
  std::optional<RingFrame> take() {
    if (!ready()) return std::nullopt;
    const RingLayout::Entry& entry = peer_.entries[got_ % kRingEntries];
    RingFrame frame;
    frame.lane = entry.lane;
    frame.size = std::min<std::uint32_t>(entry.size, kRingFrameBytes);
    std::memcpy(frame.bytes.data(), entry.bytes.data(), frame.size);
    own_.taken.store(++got_);
    return frame;
  }

 private:
  RingLayout& own_;
  const RingLayout& peer_;
  std::uint64_t put_ = 0;
  std::uint64_t got_ = 0;
};

}  // namespace kvmend::transport::local
