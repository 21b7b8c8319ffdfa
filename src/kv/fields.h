// Named fields of aux rows: which of them two sides have in common. A version of a serving system
// with more or fewer fields gets exactly the common ones, by name, wherever each side keeps them;
// or a refusal that names the difference. Pure; any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kv/differences.h"
#include "kvmend/kv_layout.h"
#include "wire/kv_messages.h"

namespace kvmend::kv {

/// A field of the source and the one of the destination that it fills, by index.
struct FieldPair {
  std::uint32_t source = 0;
  std::uint32_t destination = 0;
  friend bool operator==(const FieldPair&, const FieldPair&) = default;
};

/// `fields` with their lengths filled in (0: up to the end of the item).
[[nodiscard]] std::vector<KvField> complete_fields(
    std::span<const KvField> fields, const std::function<std::uint64_t(std::uint32_t)>& item_len);

/// What is wrong with completed fields of a component of `buffers` buffers; nothing when all is
/// well: names unique and clean, each field inside its item, none over another.
[[nodiscard]] std::optional<std::string> field_error(
    std::span<const KvField> fields, std::size_t buffers,
    const std::function<std::uint64_t(std::uint32_t)>& item_len);

/// The fields that both name, in the destination's order. Added to `differences`: another version,
/// one name with other bytes or dtypes, a required one that the other side lacks, no name in
/// common, names on one side only.
[[nodiscard]] std::vector<FieldPair> pair_fields(const wire::KvComponent& source,
                                                 const wire::KvComponent& destination,
                                                 Differences& differences);

}  // namespace kvmend::kv
