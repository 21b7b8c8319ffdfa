// Decode: what sets of prefill engines bring together, worked out once per set and not per room.
// Loop thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kv/coverage.h"

namespace kvmend::kv {

/// What one prefill engine has said of itself when it took our layout.
struct WriterCoverage {
  std::uint64_t serial = 0;                    ///< of that answer; another answer, another number
  std::vector<wire::KvCoverage> by_component;  ///< of our layout
};

struct CoverageSum {
  std::vector<Coverage> by_component;
  Status check;  ///< the first component's that isn't well
  std::vector<std::string> aux_fields;
};

class CoverageSums {
 public:
  explicit CoverageSums(const KvLayout& layout) : layout_(layout) {}

  /// `writers` in any order, always the same for the same room; nullptr: a dummy. The result
  /// outlives the next call.
  [[nodiscard]] std::shared_ptr<const CoverageSum> of(
      const std::vector<const WriterCoverage*>& writers);
  [[nodiscard]] std::size_t size() const { return sums_.size(); }

 private:
  [[nodiscard]] CoverageSum add_up(const std::vector<const WriterCoverage*>& writers) const;

  const KvLayout& layout_;
  std::map<std::vector<std::uint64_t>, std::shared_ptr<const CoverageSum>> sums_;
};

}  // namespace kvmend::kv
