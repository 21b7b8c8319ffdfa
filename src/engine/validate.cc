#include "engine/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <type_traits>

#include "base/address.h"
#include "wire/frame.h"

namespace kvmend::engine {
namespace {

using std::chrono::milliseconds;

// Times of health are doubled, stretched a hundredfold and added to time points: none overflows.
constexpr std::chrono::hours kLongest{24 * 365};
// The kernel takes milliseconds as an unsigned int.
constexpr std::chrono::hours kLongestOfTcp{24 * 7};
constexpr int kMaxSocketBuffer = 1 << 30;

template <class Rep, class Period>
std::string in_seconds(std::chrono::duration<Rep, Period> time) {
  return fmt::format("{:g} s", std::chrono::duration<double>(time).count());
}

/// The first thing that isn't allowed, in the words that every interface uses: the option as it is
/// called there, its value, and what it may be.
class Checks {
 public:
  template <class T>
  void range(const char* name, T value, std::type_identity_t<T> low, std::type_identity_t<T> high) {
    if (value < low || value > high)
      refuse(name, fmt::to_string(value), fmt::format("from {} to {}", low, high));
  }
  template <class Time>
  void time(const char* name, Time value, std::type_identity_t<Time> low,
            std::type_identity_t<Time> high = std::chrono::duration_cast<Time>(kLongest)) {
    if (value < low || value > high)
      refuse(name, in_seconds(value),
             fmt::format("from {} to {}", in_seconds(low), in_seconds(high)));
  }
  void refuse(const char* name, const std::string& value, const std::string& allowed) {
    if (first_.is_ok())
      first_ = {Code::kInvalidArgument, Origin::kCaller,
                fmt::format("{} is {}, but must be {}", name, value, allowed)};
  }
  [[nodiscard]] const Status& first() const { return first_; }

 private:
  Status first_;
};

void check_recovery(const RecoveryOptions& o, Checks& checks) {
  constexpr milliseconds kLeast{1};
  checks.time("progress_deadline", o.progress_deadline, kLeast);
  checks.time("heartbeat", o.heartbeat, kLeast);
  checks.time("connect_deadline", o.connect_deadline, kLeast);
  checks.range("failure_threshold", o.failure_threshold, 1, 1'000);
  checks.time("failure_window", o.failure_window, kLeast);
  checks.time("probe_max", o.probe_max, kLeast);
  checks.time("probe_first", o.probe_first, kLeast, std::max(o.probe_max, kLeast));
  checks.time("probe_demand", o.probe_demand, kLeast, std::max(o.probe_max, kLeast));
  checks.time("probe_deadline", o.probe_deadline, kLeast);
  checks.range("probes_in_flight", o.probes_in_flight, 1, 65'536);
  checks.range("probes_per_second", o.probes_per_second, 1, 1'000'000);
  checks.range("probation_transfers", o.probation_transfers, 1, 48);
  checks.time("idle_timeout", o.idle_timeout, kLeast);
  checks.time("park_max", o.park_max, milliseconds{0});
  checks.time("refused_park_max", o.refused_park_max, milliseconds{0});
  if (o.policy != FailedSessionPolicy::kPark && o.policy != FailedSessionPolicy::kFailFast)
    checks.refuse("failed_session_policy", fmt::to_string(static_cast<int>(o.policy)),
                  "park or fail_fast");
}

void check_tcp(const TcpOptions& o, Checks& checks) {
  checks.range("data_lanes", o.data_lanes, 1, 16);
  checks.range("stage_below_bytes", o.stage_below_bytes, 0, 1ULL << 20U);
  checks.range("send_buffer_bytes", o.send_buffer_bytes, 0, kMaxSocketBuffer);
  checks.range("receive_buffer_bytes", o.receive_buffer_bytes, 0, kMaxSocketBuffer);
  checks.time("user_timeout", o.user_timeout, milliseconds{0}, kLongestOfTcp);
}

}  // namespace

Status validate(const EngineOptions& options) {
  const auto host = parse_address(options.host, 1);
  if (!host) return host.error();
  // A port there would be overruled by the option of its own, silently.
  if (parse_address(options.host, 2)->port == host->port)
    return {Code::kInvalidArgument, Origin::kCaller,
            fmt::format("host is '{}', but must be an address without a port: that is the option "
                        "port",
                        options.host)};
  if (!host->is_loopback() && !options.insecure)
    return {Code::kPermissionDenied, Origin::kCaller,
            fmt::format("listening at {} lets anybody who reaches it read and write registered "
                        "memory; peers don't authenticate each other yet: set insecure "
                        "(--insecure) to accept that, or listen on loopback",
                        options.host)};
  Checks checks;
  checks.time("default_deadline", options.default_deadline, milliseconds{1});
  checks.range("chunk_bytes", options.chunk_bytes, 4096, wire::kMaxPayloadBytes);
  checks.range("window_bytes", options.window_bytes, options.chunk_bytes, 1ULL << 40U);
  checks.range("window_chunks", options.window_chunks, 1, 65'536);
  checks.time("spin", options.spin, std::chrono::microseconds{0}, std::chrono::seconds{1});
  checks.time("shutdown_grace", options.shutdown_grace, milliseconds{0});
  if (options.local != LocalMode::kAuto && options.local != LocalMode::kOff)
    checks.refuse("local", fmt::to_string(static_cast<int>(options.local)), "auto or off");
  check_tcp(options.tcp, checks);
  check_recovery(options.recovery, checks);
  return checks.first();
}

}  // namespace kvmend::engine
