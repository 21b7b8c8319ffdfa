// The calls of a foreign engine (kvmend/foreign.h), which threads of Python run.
#pragma once

#include <nanobind/nanobind.h>

namespace kvmend::python {

void bind_foreign(nanobind::module_& module);

}  // namespace kvmend::python
