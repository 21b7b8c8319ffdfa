#include "kv/fields.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "wire/text.h"

namespace kvmend::kv {
namespace {

std::string names_of(std::span<const KvField> fields) {
  constexpr std::size_t kShown = 8;
  std::string out;
  for (std::size_t i = 0; i < fields.size() && i < kShown; ++i)
    out += (out.empty() ? "" : ", ") + fields[i].name;
  return out + (fields.size() > kShown ? ", ..." : "");
}

std::string value_of(const KvField& field) {
  return fmt::format("{} bytes{}{}", field.bytes, field.dtype.empty() ? "" : " of ", field.dtype);
}

}  // namespace

std::vector<KvField> complete_fields(std::span<const KvField> fields,
                                     const std::function<std::uint64_t(std::uint32_t)>& item_len) {
  std::vector<KvField> out(fields.begin(), fields.end());
  for (KvField& field : out)
    if (const std::uint64_t item = item_len(field.buffer); field.bytes == 0 && field.offset < item)
      field.bytes = item - field.offset;
  return out;
}

std::optional<std::string> field_error(
    std::span<const KvField> fields, std::size_t buffers,
    const std::function<std::uint64_t(std::uint32_t)>& item_len) {
  if (fields.size() > wire::kMaxKvFields)
    return fmt::format("{} fields (at most {})", fields.size(), wire::kMaxKvFields);
  std::unordered_set<std::string> names;
  for (const KvField& field : fields) {
    const std::string text = fmt::format("field \"{}\"", field.name);
    if (field.name.empty() ||
        wire::clean_text(field.name, wire::kMaxKvFieldNameBytes) != field.name)
      return fmt::format("{}: a name has 1 to {} bytes of printable UTF-8", text,
                         wire::kMaxKvFieldNameBytes);
    if (wire::clean_text(field.dtype, wire::kMaxKvDtypeBytes) != field.dtype)
      return fmt::format("{}: dtype \"{}\" (at most {} bytes of UTF-8)", text, field.dtype,
                         wire::kMaxKvDtypeBytes);
    if (!names.insert(field.name).second) return text + " is named twice";
    const std::uint64_t item = field.buffer < buffers ? item_len(field.buffer) : 0;
    if (field.bytes == 0 || field.offset > item || field.bytes > item - field.offset)
      return fmt::format("{}: {} bytes from {} in buffer {} of {} bytes a row", text, field.bytes,
                         field.offset, field.buffer, item);
  }
  std::vector<const KvField*> order;
  for (const KvField& field : fields) order.push_back(&field);
  std::ranges::sort(order, {}, [](const KvField* f) { return std::pair(f->buffer, f->offset); });
  for (std::size_t i = 1; i < order.size(); ++i)
    if (order[i - 1]->buffer == order[i]->buffer &&
        order[i - 1]->offset + order[i - 1]->bytes > order[i]->offset)
      return fmt::format("fields \"{}\" and \"{}\" lie over each other", order[i - 1]->name,
                         order[i]->name);
  return std::nullopt;
}

std::vector<FieldPair> pair_fields(const wire::KvComponent& source,
                                   const wire::KvComponent& destination, Differences& differences) {
  std::vector<FieldPair> out;
  if (source.fields.empty() || destination.fields.empty()) {
    differences.add(fmt::format("{} aux fields named here, {} there", source.fields.size(),
                                destination.fields.size()));
    return out;
  }
  differences.compare("aux fields_version", source.fields_version, destination.fields_version);
  std::unordered_map<std::string_view, std::uint32_t> here;
  for (std::uint32_t i = 0; i < source.fields.size(); ++i) here.emplace(source.fields[i].name, i);
  std::vector<bool> taken(source.fields.size());
  for (std::uint32_t i = 0; i < destination.fields.size(); ++i) {
    const KvField& there = destination.fields[i];
    const auto at = here.find(there.name);
    if (at == here.end()) {
      if (there.required)
        differences.add(fmt::format("aux field \"{}\" missing here, required there", there.name));
      continue;
    }
    const KvField& field = source.fields[at->second];
    taken[at->second] = true;
    if (field.bytes != there.bytes || field.dtype != there.dtype) {
      differences.compare(fmt::format("aux field \"{}\"", there.name), value_of(field),
                          value_of(there));
      continue;
    }
    out.push_back({.source = at->second, .destination = i});
  }
  for (std::uint32_t i = 0; i < taken.size(); ++i)
    if (!taken[i] && source.fields[i].required)
      differences.add(
          fmt::format("aux field \"{}\" required here, missing there", source.fields[i].name));
  if (std::ranges::none_of(taken, std::identity{}))
    differences.add(fmt::format("no aux field in common: {} here, {} there",
                                names_of(source.fields), names_of(destination.fields)));
  return out;
}

}  // namespace kvmend::kv
