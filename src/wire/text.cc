#include "wire/text.h"

#include <cstdint>

namespace kvmend::wire {
namespace {

// Length of the valid UTF-8 character at the front of `text`, 0 when there is none.
std::size_t character_bytes(std::string_view text) {
  const auto first = static_cast<unsigned char>(text.front());
  std::size_t length = 0;
  std::uint32_t value = 0;
  std::uint32_t smallest = 0;
  if (first < 0x80) return 1;
  if ((first & 0xE0) == 0xC0) {
    length = 2, value = first & 0x1FU, smallest = 0x80;
  } else if ((first & 0xF0) == 0xE0) {
    length = 3, value = first & 0x0FU, smallest = 0x800;
  } else if ((first & 0xF8) == 0xF0) {
    length = 4, value = first & 0x07U, smallest = 0x1'0000;
  }
  if (length == 0 || length > text.size()) return 0;
  for (const char c : text.substr(1, length - 1)) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte & 0xC0) != 0x80) return 0;
    value = value << 6 | (byte & 0x3FU);
  }
  const bool surrogate = value >= 0xD800 && value <= 0xDFFF;
  return value < smallest || value > 0x10'FFFF || surrogate ? 0 : length;
}

// C0, DEL and the two-byte C1 controls.
bool is_control(std::string_view character) {
  const auto first = static_cast<unsigned char>(character.front());
  if (character.size() == 1) return first < 0x20 || first == 0x7F;
  return first == 0xC2 && static_cast<unsigned char>(character[1]) < 0xA0;
}

}  // namespace

std::string clean_text(std::string_view text, std::size_t max_bytes) {
  std::string out;
  while (!text.empty()) {
    const std::size_t length = character_bytes(text);
    const std::string_view character = text.substr(0, length == 0 ? 1 : length);
    const bool keep = length != 0 && !is_control(character);
    if (out.size() + (keep ? length : 1) > max_bytes) break;
    out += keep ? character : std::string_view{"?"};
    text.remove_prefix(character.size());
  }
  return out;
}

}  // namespace kvmend::wire
