#include "foreign.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "gil.h"
#include "kvmend/foreign.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kvmend::python {

void bind_foreign(nb::module_& module) {
  nb::class_<ForeignStats>(module, "ForeignStats", "What a manager did with a foreign engine.")
      .def_ro("blacklisted", &ForeignStats::blacklisted, "sessions, now")
      .def_ro("calls_running", &ForeignStats::calls_running, "queued or inside the engine, now")
      .def_ro("undrained", &ForeignStats::undrained,
              "grants under which a call may still read and write, now")
      .def_ro("writes_failed", &ForeignStats::writes_failed)
      .def_ro("probes", &ForeignStats::probes)
      .def_ro("probes_unavailable", &ForeignStats::probes_unavailable, "no send_probe there")
      .def_ro("probes_outdated", &ForeignStats::probes_outdated,
              "passed, but a failure since their start won")
      .def_ro("recoveries", &ForeignStats::recoveries, "blacklisted sessions that a probe lifted")
      .def_ro("relapses", &ForeignStats::relapses, "of those: whose next write failed");

  using Call = std::tuple<std::uint64_t, std::string, std::vector<std::uint64_t>,
                          std::vector<std::uint64_t>, std::vector<std::uint64_t>>;
  nb::class_<ForeignCalls>(module, "ForeignCalls", "kvmend.foreign's inside; no public API.")
      .def(
          "__init__",
          [](ForeignCalls* self, std::string session_id, bool probe, double probe_interval,
             double probe_max_interval, double idle_timeout) {
            new (self) ForeignCalls({.session_id = std::move(session_id),
                                     .probe_interval = to_duration(probe_interval),
                                     .probe_max_interval = to_duration(probe_max_interval),
                                     .probes_enabled = probe,
                                     .idle_timeout = to_duration(idle_timeout)});
          },
          "session_id"_a, "probe"_a, "probe_interval"_a, "probe_max_interval"_a, "idle_timeout"_a)
      .def(
          "take",
          [](ForeignCalls& calls, bool probe, double timeout) -> std::optional<Call> {
            const auto kind = probe ? ForeignCall::Kind::kProbe : ForeignCall::Kind::kWrite;
            auto call = unlocked([&] { return calls.take(kind, to_duration(timeout)); });
            if (!call) return std::nullopt;
            return Call(call->id, std::move(call->session), std::move(call->sources),
                        std::move(call->targets), std::move(call->lengths));
          },
          "probe"_a, "timeout"_a)
      .def(
          "finish",
          [](ForeignCalls& calls, std::uint64_t id, int rc, const std::string& error) {
            unlocked([&] { calls.finish(id, rc, error); });
          },
          "id"_a, "rc"_a, "error"_a)
      .def("close", &ForeignCalls::close, nb::call_guard<WithoutLock>())
      .def_prop_ro("closed", &ForeignCalls::closed)
      .def("stats", &ForeignCalls::stats, nb::call_guard<WithoutLock>());
}

}  // namespace kvmend::python
