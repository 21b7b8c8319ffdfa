// Answers to chunks, as the parts of a lane make them.
#pragma once

#include <string>
#include <utility>

#include "kvmend/status.h"
#include "wire/frame.h"

namespace kvmend::transport::tcp {

/// The peer broke the protocol: its connection is closed. Any thread.
[[nodiscard]] inline Status protocol_error(std::string detail) {
  return {Code::kProtocolError, Origin::kPeer, std::move(detail)};
}

/// `argument`: the index of the offending slice, where one exists. Any thread.
[[nodiscard]] inline wire::AckEntry to_entry(ChunkId chunk, const Status& status,
                                             std::uint32_t argument = 0) {
  return {chunk, status.code(), status.origin(), argument};
}

}  // namespace kvmend::transport::tcp
