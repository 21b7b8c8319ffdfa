// What the parts of a lane say of chunks and of a peer that breaks the protocol.
#pragma once

#include <string>

#include "kvmend/status.h"
#include "wire/frame.h"

namespace kvmend::transport::tcp {

/// The peer broke the protocol: its connection is closed.
[[nodiscard]] inline Status protocol_error(std::string detail) {
  return {Code::kProtocolError, Origin::kPeer, std::move(detail)};
}

/// Of a chunk whose frame hasn't left.
[[nodiscard]] inline Status early_answer(ChunkId chunk) {
  return protocol_error("an answer to chunk " + std::to_string(chunk.value) +
                        ", which hasn't been sent entirely");
}

[[nodiscard]] inline Status source_fault() {
  return {Code::kNotRegistered, Origin::kCaller, "source memory isn't accessible"};
}

/// `argument`: the index of the offending slice, where one exists.
[[nodiscard]] inline wire::AckEntry to_entry(ChunkId chunk, const Status& status,
                                             std::uint32_t argument = 0) {
  return {chunk, status.code(), status.origin(), argument};
}

}  // namespace kvmend::transport::tcp
