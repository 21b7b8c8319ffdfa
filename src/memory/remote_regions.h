// The initiator's copy of what a peer has registered for raw users, as the peer announces it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kvmend/ids.h"
#include "kvmend/status.h"
#include "wire/control.h"

namespace kvmend::memory {

/// One version of a peer's table. Immutable; any thread.
class RemoteRegions {
 public:
  struct Place {
    RegionRef region;
    std::uint64_t offset = 0;
    std::uint64_t length = 0;
    Access access = Access::kNone;
  };

  /// `regions` sorted by base, without overlaps.
  RemoteRegions(std::uint64_t version, std::vector<wire::RegionEntry> regions);
  RemoteRegions(const RemoteRegions&) = delete;
  RemoteRegions& operator=(const RemoteRegions&) = delete;

  /// The peer's region that contains [address, address + length). O(1) for neighbours of the last
  /// hit, else O(log regions). Errors, origin caller: kNotRegistered, kOutOfRange (begins in a
  /// region and ends beyond it), both naming the range; kInvalidArgument (length 0).
  [[nodiscard]] Result<Place> translate(std::uint64_t address, std::uint64_t length) const;
  /// The same for a range that may go on in the regions that follow without a gap: the place of its
  /// first `Place::length` bytes.
  [[nodiscard]] Result<Place> translate_head(std::uint64_t address, std::uint64_t length) const;

  [[nodiscard]] std::uint64_t version() const { return version_; }
  [[nodiscard]] std::size_t size() const { return regions_.size(); }
  /// By base address.
  [[nodiscard]] std::span<const wire::RegionEntry> list() const { return regions_; }

 private:
  std::uint64_t version_;
  std::vector<wire::RegionEntry> regions_;
  mutable std::atomic<std::uint32_t> hint_{0};  // any value is correct
};

/// Puts the parts of a table together. Everything in them comes from outside: overlaps, repeated
/// slots, and more than config::kMaxRegions are refused, and what was known stays. A table costs
/// O(n log n) when its last part comes, and each part what it holds: work follows the bytes that
/// the peer has sent, however it cuts them. Loop thread.
class RemoteRegionsBuilder {
 public:
  /// Takes the next part. Returns the new table after the last part of a version, else nullptr:
  /// parts are missing, or `error()` says what was wrong. A table replaces what was known (lanes
  /// keep the order).
  std::shared_ptr<const RemoteRegions> apply(const wire::RegionTablePart& part);

  /// Of the last `apply`: OK or kProtocolError (the peer's nonsense).
  [[nodiscard]] const Status& error() const { return error_; }
  /// Forgets everything: another incarnation answers.
  void reset();

 private:
  std::shared_ptr<const RemoteRegions> refuse(std::string detail);

  bool building_ = false;
  std::uint64_t version_ = 0;  // being built
  std::vector<wire::RegionEntry> next_;
  Status error_;
};

}  // namespace kvmend::memory
