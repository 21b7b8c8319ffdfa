#include "errors.h"

#include <nanobind/nanobind.h>

#include <typeinfo>

namespace nb = nanobind;

namespace kvmend::python {
namespace {

// Python code decides which class a code has; called with the interpreter lock held.
void raise_in_python(const Status& status) {
  try {
    const nb::object error =
        nb::module_::import_("kvmend.errors")
            .attr("error_for")(static_cast<int>(status.code()), origin_name(status.origin()).data(),
                               nb::str(status.detail().c_str(), status.detail().size()),
                               status.sys_errno());
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  } catch (nb::python_error& failed) {  // e.g. the interpreter is going down
    failed.restore();
  }
}

}  // namespace

void install_translator() {
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const StatusError& error) {
      raise_in_python(error.status());
    } catch (const std::bad_cast&) {  // a binding took a value for granted: no bug of C++'s
      PyErr_SetString(PyExc_TypeError, "an argument has a type or value that isn't allowed");
    }
  });
}

}  // namespace kvmend::python
