// What travels between simulated hosts: TCP segments, without their header's bit layout.
#pragma once

#include <cstdint>
#include <vector>

#include "base/address.h"

namespace kvmend::env::sim {

struct Packet {
  enum class Kind : std::uint8_t { kSyn, kSynAck, kSegment, kReset };
  Kind kind = Kind::kSegment;
  Address from;
  Address to;
  std::uint64_t sequence = 0;  ///< of the first byte of the payload; both directions begin at 0
  std::uint64_t ack = 0;       ///< the sender has everything before
  std::uint64_t edge = 0;      ///< the sender takes bytes up to here (its window)
  bool fin = false;            ///< the direction ends after the payload; counts as one byte
  bool probe = false;          ///< asks for an acknowledgement although it carries nothing
  std::vector<std::byte> payload;
};

}  // namespace kvmend::env::sim
