// Batches of slices from three NumPy arrays: no Python object per page.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <vector>

#include "kvmend/transfer.h"

namespace kvmend::python {

using AddressArray = nanobind::ndarray<const std::uint64_t, nanobind::ndim<1>, nanobind::c_contig,
                                       nanobind::device::cpu>;

/// One slice per element. Throws StatusError (kInvalidArgument) when the lengths of the arrays
/// differ. The arrays must not change meanwhile; the interpreter lock isn't needed.
std::vector<Slice> slices_from(const AddressArray& local, const AddressArray& remote,
                               const AddressArray& lengths);

}  // namespace kvmend::python
