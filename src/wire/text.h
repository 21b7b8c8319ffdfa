// Text that crosses the wire and ends in logs, metrics and Python strings.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace kvmend::wire {

/// `text` as valid UTF-8 of at most `max_bytes`: control characters and broken sequences become
/// '?', and no character is cut in two. Applying it twice changes nothing.
[[nodiscard]] std::string clean_text(std::string_view text, std::size_t max_bytes);

}  // namespace kvmend::wire
