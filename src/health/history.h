// The last transitions of a session, for the page, the log and tests: bounded.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "base/time.h"
#include "health/transition_table.h"
#include "kvmend/status.h"

namespace kvmend::health {

struct HistoryEntry {
  Time at;
  State from;
  State to;
  Event event;
  Status cause;  ///< OK where the transition is no failure; its detail is cut to `kMaxDetail`
};

/// A ring of `capacity` entries; memory grows only as it fills. One owner thread.
class History {
 public:
  static constexpr std::size_t kMaxDetail = 160;

  explicit History(std::size_t capacity) : capacity_(capacity) {}

  void add(HistoryEntry entry) {
    if (entry.cause.detail().size() > kMaxDetail) entry.cause = shortened(entry.cause);
    ++total_;
    if (ring_.size() < capacity_) {
      ring_.push_back(std::move(entry));
      return;
    }
    ring_[next_] = std::move(entry);
    next_ = (next_ + 1) % capacity_;
  }

  /// Oldest first; at most `capacity` entries.
  [[nodiscard]] std::vector<HistoryEntry> entries() const {
    std::vector<HistoryEntry> result;
    result.reserve(ring_.size());
    for (std::size_t i = 0; i < ring_.size(); ++i) {
      result.push_back(ring_[(next_ + i) % ring_.size()]);
    }
    return result;
  }

  /// Transitions since the session began, remembered or not.
  [[nodiscard]] std::size_t total() const { return total_; }

  /// `status` with its detail cut to `kMaxDetail` bytes.
  [[nodiscard]] static Status shortened(const Status& status) {
    return {status.code(), status.origin(), status.detail().substr(0, kMaxDetail),
            status.sys_errno()};
  }

 private:
  std::size_t capacity_;
  std::vector<HistoryEntry> ring_;
  std::size_t next_ = 0;  ///< the oldest entry, once the ring is full
  std::size_t total_ = 0;
};

}  // namespace kvmend::health
