// The extension module kvmend._kvmend: a thin layer that the Python classes of kvmend/ stand on.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "bootstrap.h"
#include "engine.h"
#include "env/posix/stderr_log.h"
#include "errors.h"
#include "foreign.h"
#include "gil.h"
#include "kv.h"
#include "pool.h"
#include "wire/checksum.h"

namespace nb = nanobind;
using namespace nb::literals;

NB_MODULE(_kvmend, module) {
  using namespace kvmend;
  env::posix::log_to_stderr("kvmend");
  python::install_translator();
  python::bind_engine(module);
  python::bind_foreign(module);
  python::bind_kv(module);
  python::bind_bootstrap(module);
  python::bind_pool(module);
  module.def(
      "xxh3_64",
      [](const nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>& bytes) {
        return python::unlocked([&] {
          wire::Checksum sum;
          sum.update(std::as_bytes(std::span(bytes.data(), bytes.size())));
          return sum.value();
        });
      },
      "bytes"_a, "XXH3-64 of a uint8 array: the checksum that travels with data frames.");
}
