// Helpers around generated messages; included by this folder's .cc files only.
#pragma once

#include <google/protobuf/message_lite.h>

#include <string>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/try.h"
#include "wire/field_caps.h"

namespace kvmend::wire::internal {

inline std::unexpected<Status> malformed(std::string detail) {
  return fail(Code::kProtocolError, Origin::kPeer, std::move(detail));
}

inline Bytes as_bytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

inline std::string as_string(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Caps first, then the parser.
template <class Message>
Result<Message> parse_capped(Bytes body, std::span<const FieldCap> caps, std::size_t max_bytes,
                             const char* name) {
  if (body.size() > max_bytes) return malformed(std::string(name) + ": too long");
  KVM_RETURN_IF_ERROR(check_caps(body, caps, name));
  Message message;
  if (!message.ParseFromArray(body.data(), static_cast<int>(body.size())))
    return malformed(std::string("malformed ") + name);
  return message;
}

/// The serialized message in a byte container.
template <class Container>
Container serialize(const google::protobuf::MessageLite& message, std::size_t max_bytes) {
  const std::size_t size = message.ByteSizeLong();
  KVM_CHECK(size <= max_bytes, "a message beyond its cap");
  Container out;
  out.resize(size);
  KVM_CHECK(message.SerializeToArray(out.data(), static_cast<int>(size)));
  return out;
}

}  // namespace kvmend::wire::internal
