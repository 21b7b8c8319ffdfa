// kvmend.MemoryPool.
#pragma once

#include <nanobind/nanobind.h>

namespace kvmend::python {

void bind_pool(nanobind::module_& module);

}  // namespace kvmend::python
