#include "kv/pairing.h"

#include <algorithm>
#include <deque>
#include <map>
#include <string>

#include "kvmend/kv_layout.h"

namespace kvmend::kv {
namespace {

using wire::KvComponent;
using wire::KvLayout;

KvPool pool_of(const KvComponent& component) {
  return static_cast<KvPool>(component.kind);
}

std::string id_list(const std::vector<std::uint32_t>& ids) {
  constexpr std::size_t kShown = 16;
  const std::size_t shown = std::min(ids.size(), kShown);
  return fmt::format("{}{}", fmt::join(ids.begin(), ids.begin() + static_cast<long>(shown), ","),
                     shown < ids.size() ? ",..." : "");
}

/// Whether both sides may have different layers: then only ids say which is which.
bool layers_differ(const KvLayout& source, const KvLayout& destination) {
  return source.rank.pp_size != destination.rank.pp_size ||
         static_cast<KvShare>(source.share) == KvShare::kLayers;
}

/// The n-th buffer of a layer takes the n-th of the other side.
class ByLayer {
 public:
  void add(std::size_t component, const KvComponent& destination) {
    for (std::uint32_t i = 0; i < destination.layer_ids.size(); ++i)
      free_[destination.layer_ids[i]].push_back({component, i});
  }
  /// False when a layer of the source has no partner.
  bool pair(const KvComponent& source, std::vector<ComponentPair>& out) {
    for (std::uint32_t i = 0; i < source.layer_ids.size(); ++i) {
      const auto at = free_.find(source.layer_ids[i]);
      if (at == free_.end() || at->second.empty()) return false;
      const Place place = at->second.front();
      at->second.pop_front();
      out[place.component].buffers.push_back({i, place.buffer});
    }
    return true;
  }

 private:
  struct Place {
    std::size_t component;
    std::uint32_t buffer;
  };
  std::map<std::uint32_t, std::deque<Place>> free_;
};

/// Pairs one source component with the destination components `into` (several: kv and kv_device).
void pair_buffers(const KvLayout& source, std::uint32_t from, const KvLayout& destination,
                  const std::vector<std::size_t>& into, std::vector<ComponentPair>& out,
                  Differences& differences) {
  const KvComponent& here = source.components[from];
  const std::string_view name = kv_pool_name(pool_of(here));
  for (const std::size_t c : into) {
    out[c].source_component = from;
    differences.compare(fmt::format("{} dtype", name), here.dtype, destination.components[c].dtype);
  }
  if (!here.fields.empty() || !destination.components[into.front()].fields.empty()) {
    out[into.front()].fields = pair_fields(here, destination.components[into.front()], differences);
    return;
  }
  const bool ids = !here.layer_ids.empty() && std::ranges::all_of(into, [&](std::size_t c) {
    return !destination.components[c].layer_ids.empty();
  });
  if (ids) {
    ByLayer by_layer;
    std::vector<std::uint32_t> there;
    for (const std::size_t c : into) {
      by_layer.add(c, destination.components[c]);
      there.insert(there.end(), destination.components[c].layer_ids.begin(),
                   destination.components[c].layer_ids.end());
    }
    if (!by_layer.pair(here, out))
      differences.compare(fmt::format("{} layer ids", name), id_list(here.layer_ids),
                          id_list(there));
    return;
  }
  const KvComponent& there = destination.components[into.front()];
  if (into.size() > 1 || here.regions.size() != there.regions.size())
    return differences.add(
        fmt::format("{} buffers {} here, {} in {} pools there, without layer ids", name,
                    here.regions.size(), there.regions.size(), into.size()));
  if (layers_differ(source, destination) && pool_of(here) != KvPool::kAux)
    return differences.add(fmt::format("{} without layer ids: {} of {} stages here, {} of {} there",
                                       name, source.rank.pp_rank, source.rank.pp_size,
                                       destination.rank.pp_rank, destination.rank.pp_size));
  for (std::uint32_t i = 0; i < here.regions.size(); ++i)
    out[into.front()].buffers.push_back({i, i});
}

}  // namespace

std::vector<ComponentPair> pair_components(const KvLayout& source, const KvLayout& destination,
                                           Differences& differences) {
  std::vector<ComponentPair> out(destination.components.size());
  // Several state pools may be of one kind: the n-th here is the n-th there.
  std::map<KvPool, std::vector<std::uint32_t>> here;
  std::map<KvPool, std::vector<std::size_t>> there;
  for (std::uint32_t c = 0; c < source.components.size(); ++c)
    here[pool_of(source.components[c])].push_back(c);
  for (std::size_t c = 0; c < destination.components.size(); ++c) {
    const KvPool pool = pool_of(destination.components[c]);
    there[is_kv(pool) ? KvPool::kKv : pool].push_back(c);
  }
  for (const auto& [pool, sources] : here) {
    const std::vector<std::size_t>& targets = there[pool];
    if (pool == KvPool::kKv && !targets.empty() && sources.size() == 1) {
      pair_buffers(source, sources[0], destination, targets, out, differences);
    } else if (sources.size() != targets.size()) {
      differences.add(fmt::format("{} pools {} here, {} there", kv_pool_name(pool), sources.size(),
                                  targets.size()));
    } else {
      for (std::size_t i = 0; i < sources.size(); ++i)
        pair_buffers(source, sources[i], destination, {targets[i]}, out, differences);
    }
  }
  if (layers_differ(source, destination)) return out;
  for (const auto& [pool, targets] : there)
    if (!here.contains(pool))
      differences.add(fmt::format("{} pools 0 here, {} there", kv_pool_name(pool), targets.size()));
  return out;
}

}  // namespace kvmend::kv
