// KvManager, KvSender and KvReceiver as Python holds them.
#pragma once

#include <nanobind/nanobind.h>

namespace kvmend::python {

void bind_kv(nanobind::module_& module);

}  // namespace kvmend::python
