// A KvLayout from Python's dataclasses (kvmend/kv.py).
#pragma once

#include <nanobind/nanobind.h>

#include "kvmend/kv.h"

namespace kvmend::python {

/// Buffers come as (address, item_len) pairs. Throws nb::cast_error for wrong types; the values are
/// checked by KvManager::create.
KvLayout layout_from(nanobind::handle layout);

}  // namespace kvmend::python
