#include "pool.h"

#include <nanobind/ndarray.h>

#include <array>

#include "errors.h"
#include "gil.h"
#include "kvmend/pool.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kvmend::python {
namespace {

struct Pool {
  explicit Pool(std::uint64_t bytes)
      : memory(unlocked([&] { return unwrap(MemoryPool::create(bytes)); })) {}
  std::unique_ptr<MemoryPool> memory;
};

const char* pages_name(const Pool& pool) {
  constexpr std::array kNames{"small", "transparent_huge", "huge"};
  return kNames.at(static_cast<std::size_t>(pool.memory->pages()));
}

}  // namespace

void bind_pool(nb::module_& module) {
  nb::class_<Pool>(module, "MemoryPool",
                   "Zeroed memory for KV pages that engines of the same user on this host may copy "
                   "from without a system call. Given back when neither the pool nor a view of "
                   "`array` is left. A child of fork() shares it.")
      .def(nb::init<std::uint64_t>(), "nbytes"_a,
           "Raises InvalidArgumentError (0 bytes), ResourceExhaustedError.")
      .def_prop_ro(
          "array",
          [](const nb::handle_t<Pool>& self) {
            const MemoryPool& memory = *nb::cast<Pool&>(self).memory;
            return nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>(
                memory.data(), {static_cast<std::size_t>(memory.size())}, self);
          },
          "The memory as a flat uint8 array, aligned to 2 MiB; it keeps the pool alive.")
      .def_prop_ro("pages", &pages_name, "\"small\", \"transparent_huge\" or \"huge\"");
}

}  // namespace kvmend::python
