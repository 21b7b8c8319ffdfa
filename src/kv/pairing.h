// Which buffer of the source fills which buffer of the destination: by layer id, or by position.
// Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kv/differences.h"
#include "kv/fields.h"
#include "wire/kv_messages.h"

namespace kvmend::kv {

struct BufferPair {
  std::uint32_t source = 0;
  std::uint32_t destination = 0;
  friend bool operator==(const BufferPair&, const BufferPair&) = default;
};

struct ComponentPair {
  /// Nothing: the source hasn't got such a pool (another pipeline stage has).
  std::optional<std::uint32_t> source_component;
  std::vector<BufferPair> buffers;  ///< destination buffers without a partner are left out
  std::vector<FieldPair> fields;    ///< in their place where aux rows have named fields
};

/// One entry per component of the destination. What can't be paired is added to `differences`.
[[nodiscard]] std::vector<ComponentPair> pair_components(const wire::KvLayout& source,
                                                         const wire::KvLayout& destination,
                                                         Differences& differences);

}  // namespace kvmend::kv
