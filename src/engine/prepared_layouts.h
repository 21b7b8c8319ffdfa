// Two layouts of pages, checked once; and the pieces of a transfer between them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/address.h"
#include "engine/local_regions.h"
#include "kvmend/status.h"
#include "kvmend/transfer.h"
#include "transport/chunk.h"

namespace kvmend::engine {

/// Constant; any thread.
class PreparedLayouts final : public PreparedPages {
 public:
  /// Errors: kInvalidArgument naming what doesn't fit.
  static Result<std::shared_ptr<const PreparedLayouts>> create(Address peer, PageLayout local,
                                                               PageLayout remote);

  [[nodiscard]] const Address& peer() const { return peer_; }
  /// Whether every local buffer lies in a registered region. Errors: kNotRegistered.
  [[nodiscard]] Status check_registered(const LocalRegions& regions) const;
  /// The pieces of a transfer, by address on both sides, merged where they are contiguous on both.
  /// Errors: kInvalidArgument, kOutOfRange, kResourceExhausted.
  [[nodiscard]] Status append_pieces(std::span<const std::uint32_t> local_pages,
                                     std::span<const std::uint32_t> remote_pages,
                                     std::vector<transport::Piece>& pieces) const;

 private:
  PreparedLayouts(Address peer, PageLayout local, PageLayout remote)
      : peer_(std::move(peer)), local_(std::move(local)), remote_(std::move(remote)) {}
  Address peer_;
  PageLayout local_;
  PageLayout remote_;
};

}  // namespace kvmend::engine
