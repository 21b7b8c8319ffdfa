#include "slices.h"

#include <fmt/format.h>

#include "errors.h"

namespace kvmend::python {

std::vector<Slice> slices_from(const AddressArray& local, const AddressArray& remote,
                               const AddressArray& lengths) {
  const std::size_t count = local.shape(0);
  if (remote.shape(0) != count || lengths.shape(0) != count)
    throw StatusError({Code::kInvalidArgument, Origin::kCaller,
                       fmt::format("{} local addresses, {} remote addresses and {} lengths; the "
                                   "three must be as many",
                                   count, remote.shape(0), lengths.shape(0))});
  std::vector<Slice> slices(count);
  const std::uint64_t* from = local.data();
  const std::uint64_t* to = remote.data();
  const std::uint64_t* length = lengths.data();
  for (std::size_t i = 0; i < count; ++i)
    slices[i] = {reinterpret_cast<void*>(static_cast<std::uintptr_t>(from[i])), to[i], length[i]};
  return slices;
}

}  // namespace kvmend::python
