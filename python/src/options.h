// EngineOptions from Python's keyword arguments.
#pragma once

#include <nanobind/nanobind.h>

#include "kvmend/options.h"

namespace kvmend::python {

using OptionDict = nanobind::typed<nanobind::dict, nanobind::str, nanobind::object>;

/// Every key must be one of `option_names`; times are seconds (int or float). Throws StatusError
/// (kInvalidArgument) that names the option, for an unknown one, a wrong type or a number that the
/// field can't hold. Ranges are checked by Engine::create.
EngineOptions options_from(const OptionDict& given);

/// Name -> default, times in seconds: what the keyword arguments may be.
OptionDict default_options();

}  // namespace kvmend::python
