// The bootstrap registry and its client as Python holds them.
#pragma once

#include <nanobind/nanobind.h>

namespace kvmend::python {

void bind_bootstrap(nanobind::module_& module);

}  // namespace kvmend::python
