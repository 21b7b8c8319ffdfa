// Layouts from Python's dataclasses (kvmend/kv_layout.py), and the rank map.
#pragma once

#include <nanobind/nanobind.h>

#include "kvmend/kv.h"

namespace kvmend::python {

/// Buffers come as (address, item_len, shape, optional). Throws nb::cast_error for wrong types; the
/// values are checked by KvManager::create.
KvLayout layout_from(nanobind::handle layout);

void bind_kv_ranks(nanobind::module_& module);

}  // namespace kvmend::python
