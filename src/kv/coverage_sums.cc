#include "kv/coverage_sums.h"

#include <algorithm>
#include <utility>

#include "base/config.h"

namespace kvmend::kv {

CoverageSum CoverageSums::add_up(const std::vector<const WriterCoverage*>& writers) const {
  static const wire::KvCoverage kNothing;
  CoverageSum sum;
  std::vector<const wire::KvCoverage*> all;
  for (std::size_t c = 0; c < layout_.components.size(); ++c) {
    all.clear();
    for (const WriterCoverage* one : writers)
      all.push_back(one == nullptr ? &kNothing : &one->by_component[c]);
    const Coverage& coverage = sum.by_component.emplace_back(layout_, c, all);
    if (sum.check.is_ok()) sum.check = coverage.check();
    for (const std::uint32_t field : coverage.fields())
      sum.aux_fields.push_back(layout_.components[c].fields[field].name);
  }
  return sum;
}

std::shared_ptr<const CoverageSum> CoverageSums::of(
    const std::vector<const WriterCoverage*>& writers) {
  std::vector<std::uint64_t> key;
  key.reserve(writers.size());
  for (const WriterCoverage* one : writers) key.push_back(one == nullptr ? 0 : one->serial);
  const auto at = sums_.find(key);
  if (at != sums_.end()) return at->second;
  // Engines restart and their answers are replaced: old sums go all at once.
  if (sums_.size() >= config::kMaxCoverages) sums_.clear();
  auto sum = std::make_shared<const CoverageSum>(add_up(writers));
  sums_.emplace(std::move(key), sum);
  return sum;
}

}  // namespace kvmend::kv
