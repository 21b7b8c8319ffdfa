// A table whose ids are never used twice: a slot's index with its generation. An event or a timer
// names its target by id, so one that comes late finds nothing instead of a stranger.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/check.h"

namespace kvmend::env::posix {

/// Thread-compatible. Ids are never 0.
template <class T>
class SlotMap {
 public:
  std::uint64_t insert(T value) {
    if (free_.empty()) {
      KVM_CHECK(slots_.size() < UINT32_MAX);
      free_.push_back(static_cast<std::uint32_t>(slots_.size()));
      slots_.emplace_back();
    }
    const std::uint32_t index = free_.back();
    free_.pop_back();
    Slot& slot = slots_[index];
    slot.used = true;
    slot.value = std::move(value);
    return (static_cast<std::uint64_t>(slot.generation) << 32) | index;
  }

  /// The value of a live id; valid until the next insert.
  [[nodiscard]] T* find(std::uint64_t id) {
    const auto index = static_cast<std::uint32_t>(id);
    if (index >= slots_.size()) return nullptr;
    Slot& slot = slots_[index];
    return slot.used && slot.generation == id >> 32 ? &slot.value : nullptr;
  }

  /// Takes the value out. The id must be live.
  T take(std::uint64_t id) {
    T* found = find(id);
    KVM_CHECK(found != nullptr, "dead slot id");
    Slot& slot = slots_[static_cast<std::uint32_t>(id)];
    T value = std::move(*found);
    slot.value = T{};
    slot.used = false;
    if (++slot.generation == 0) slot.generation = 1;
    free_.push_back(static_cast<std::uint32_t>(id));
    return value;
  }

  [[nodiscard]] std::size_t size() const { return slots_.size() - free_.size(); }

 private:
  struct Slot {
    std::uint32_t generation = 1;
    bool used = false;
    T value{};
  };
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_;
};

}  // namespace kvmend::env::posix
