#include "wire/field_caps.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "base/check.h"

namespace kvmend::wire {
namespace {

constexpr std::size_t kMaxCapsPerMessage = 16;
constexpr int kMaxVarintBytes = 10;

std::optional<std::uint64_t> read_varint(Bytes& from) {
  std::uint64_t value = 0;
  for (int i = 0; i < kMaxVarintBytes && !from.empty(); ++i) {
    const auto byte = static_cast<std::uint64_t>(from.front());
    from = from.subspan(1);
    value |= (byte & 0x7F) << (7 * i);
    if (byte < 0x80) return value;
  }
  return std::nullopt;
}

Status malformed(const char* name) {
  return {Code::kProtocolError, Origin::kPeer, fmt::format("malformed {}", name)};
}

// Takes one field's value off `from`. `content` is what a length-delimited field holds.
bool take_value(Bytes& from, std::uint64_t wire_type, std::optional<Bytes>& content) {
  std::size_t skip = 0;
  switch (wire_type) {
    case 0:
      return read_varint(from).has_value();
    case 1:
      skip = 8;
      break;
    case 5:
      skip = 4;
      break;
    case 2: {
      const auto length = read_varint(from);
      if (!length || *length > from.size()) return false;
      skip = static_cast<std::size_t>(*length);
      content = from.first(skip);
      break;
    }
    default:
      return false;  // groups
  }
  if (skip > from.size()) return false;
  from = from.subspan(skip);
  return true;
}

}  // namespace

Status check_caps(Bytes message, std::span<const FieldCap> caps, const char* name) {
  KVM_CHECK(caps.size() <= kMaxCapsPerMessage);
  std::array<std::uint32_t, kMaxCapsPerMessage> counts{};
  while (!message.empty()) {
    const auto tag = read_varint(message);
    std::optional<Bytes> content;
    if (!tag || !take_value(message, *tag & 7, content)) return malformed(name);
    const auto cap = std::ranges::find(caps, *tag >> 3, &FieldCap::field);
    if (cap == caps.end()) continue;
    if (++counts[static_cast<std::size_t>(cap - caps.begin())] > cap->max_count)
      return {Code::kProtocolError, Origin::kPeer,
              fmt::format("{}: more than {} of field {}", name, cap->max_count, cap->field)};
    if (!content) continue;
    if (content->size() > cap->max_bytes)
      return {Code::kProtocolError, Origin::kPeer,
              fmt::format("{}: field {} of {} bytes, at most {}", name, cap->field, content->size(),
                          cap->max_bytes)};
    if (!cap->fields.empty()) {
      if (Status status = check_caps(*content, cap->fields, name); !status.is_ok()) return status;
    }
  }
  return Status::ok();
}

}  // namespace kvmend::wire
