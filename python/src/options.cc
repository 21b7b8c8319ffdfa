#include "options.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <cmath>
#include <concepts>
#include <string_view>

#include "errors.h"

namespace nb = nanobind;

namespace kvmend::python {
namespace {

[[noreturn]] void refuse(std::string_view name, nb::handle value, std::string_view want) {
  throw StatusError({Code::kInvalidArgument, Origin::kCaller,
                     fmt::format("option {}={} must be {}", name, nb::repr(value).c_str(), want)});
}

void set(std::string_view name, nb::handle value, bool& field) {
  if (!nb::isinstance<nb::bool_>(value)) refuse(name, value, "True or False");
  field = nb::cast<bool>(value);
}

void set(std::string_view name, nb::handle value, std::string& field) {
  if (!nb::isinstance<nb::str>(value) || !nb::try_cast<std::string>(value, field))
    refuse(name, value, "a str of valid Unicode");
}

template <std::integral T>
void set(std::string_view name, nb::handle value, T& field) {
  if (nb::isinstance<nb::bool_>(value) || !nb::try_cast<T>(value, field, false))
    refuse(name, value,
           fmt::format("an int from {} to {}", std::numeric_limits<T>::min(),
                       std::numeric_limits<T>::max()));
}

template <class Rep, class Period>
void set(std::string_view name, nb::handle value, std::chrono::duration<Rep, Period>& field) {
  using Duration = std::chrono::duration<Rep, Period>;
  double seconds = 0;
  if (nb::isinstance<nb::bool_>(value) || !nb::try_cast<double>(value, seconds) ||
      !std::isfinite(seconds) || std::abs(seconds) > 1e9)
    refuse(name, value, "a number of seconds");
  field = std::chrono::round<Duration>(std::chrono::duration<double>(seconds));
}

std::string text_of(nb::handle value) {
  std::string text;
  if (!nb::isinstance<nb::str>(value) || !nb::try_cast<std::string>(value, text)) text.clear();
  return text;
}

void set(std::string_view name, nb::handle value, FailedSessionPolicy& field) {
  const std::string text = text_of(value);
  if (text != "park" && text != "fail_fast") refuse(name, value, "'park' or 'fail_fast'");
  field = text == "park" ? FailedSessionPolicy::kPark : FailedSessionPolicy::kFailFast;
}

void set(std::string_view name, nb::handle value, LocalMode& field) {
  const std::string text = text_of(value);
  if (text != "auto" && text != "off") refuse(name, value, "'auto' or 'off'");
  field = text == "auto" ? LocalMode::kAuto : LocalMode::kOff;
}

template <class T>
nb::object get(const T& field) {
  return nb::cast(field);
}
template <class Rep, class Period>
nb::object get(const std::chrono::duration<Rep, Period>& field) {
  return nb::cast(std::chrono::duration<double>(field).count());
}
nb::object get(const LocalMode& field) {
  return nb::cast(field == LocalMode::kAuto ? "auto" : "off");
}
nb::object get(const FailedSessionPolicy& field) {
  return nb::cast(field == FailedSessionPolicy::kPark ? "park" : "fail_fast");
}

// The whole list: keyword name and field. `see` is called once per option.
template <class See>
void each_option(EngineOptions& o, See&& see) {
  see("host", o.host);
  see("port", o.port);
  see("advertise", o.advertise);
  see("insecure", o.insecure);
  see("default_deadline", o.default_deadline);
  see("chunk_bytes", o.chunk_bytes);
  see("window_bytes", o.window_bytes);
  see("window_chunks", o.window_chunks);
  see("spin", o.spin);
  see("shutdown_grace", o.shutdown_grace);
  see("memory_keeper", o.memory_keeper);
  see("admin_listen", o.admin_listen);
  see("local", o.local);
  see("data_lanes", o.tcp.data_lanes);
  see("congestion", o.tcp.congestion);
  see("send_buffer_bytes", o.tcp.send_buffer_bytes);
  see("receive_buffer_bytes", o.tcp.receive_buffer_bytes);
  see("user_timeout", o.tcp.user_timeout);
  see("pacing_bytes_per_second", o.tcp.pacing_bytes_per_second);
  see("stage_below_bytes", o.tcp.stage_below_bytes);
  see("probe", o.recovery.probe);
  see("progress_deadline", o.recovery.progress_deadline);
  see("heartbeat", o.recovery.heartbeat);
  see("connect_deadline", o.recovery.connect_deadline);
  see("failure_threshold", o.recovery.failure_threshold);
  see("failure_window", o.recovery.failure_window);
  see("probe_first", o.recovery.probe_first);
  see("probe_max", o.recovery.probe_max);
  see("probe_demand", o.recovery.probe_demand);
  see("probe_deadline", o.recovery.probe_deadline);
  see("probes_in_flight", o.recovery.probes_in_flight);
  see("probes_per_second", o.recovery.probes_per_second);
  see("probation_transfers", o.recovery.probation_transfers);
  see("idle_timeout", o.recovery.idle_timeout);
  see("failed_session_policy", o.recovery.policy);
  see("park_max", o.recovery.park_max);
  see("refused_park_max", o.recovery.refused_park_max);
}

}  // namespace

EngineOptions options_from(const OptionDict& given) {
  EngineOptions options;
  std::size_t known = 0;
  each_option(options, [&](const char* name, auto& field) {
    if (!given.contains(name)) return;
    set(name, given[name], field);
    ++known;
  });
  if (known == given.size()) return options;
  const OptionDict defaults = default_options();
  for (auto [name, value] : given) {
    if (!defaults.contains(name))
      throw StatusError({Code::kInvalidArgument, Origin::kCaller,
                         fmt::format("there is no option {}; there are: {}", nb::repr(name).c_str(),
                                     nb::str(nb::str(", ").attr("join")(defaults)).c_str())});
  }
  return options;
}

OptionDict default_options() {
  OptionDict defaults;
  EngineOptions options;
  each_option(options, [&](const char* name, auto& field) { defaults[name] = get(field); });
  return defaults;
}

}  // namespace kvmend::python
