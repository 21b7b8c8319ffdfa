#include "engine/validate.h"

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "health/options.h"
#include "session/health_options.h"

namespace kvmend::engine {
namespace {

using namespace std::chrono_literals;

struct Case {
  const char* option;
  std::function<void(EngineOptions&)> change;
};

// Each used to be accepted, to overflow, or to be refused under a name that no user has seen.
const std::vector<Case> kNonsense = {
    {"connect_deadline", [](EngineOptions& o) { o.recovery.connect_deadline = 0ms; }},
    {"connect_deadline", [](EngineOptions& o) { o.recovery.connect_deadline = -1ms; }},
    {"connect_deadline", [](EngineOptions& o) { o.recovery.connect_deadline = 24h * 366; }},
    {"default_deadline",
     [](EngineOptions& o) { o.default_deadline = std::chrono::milliseconds::max(); }},
    {"heartbeat", [](EngineOptions& o) { o.recovery.heartbeat = 0ms; }},
    {"probe_first", [](EngineOptions& o) { o.recovery.probe_first = 6s; }},
    {"probe_demand", [](EngineOptions& o) { o.recovery.probe_demand = 6s; }},
    {"probes_per_second", [](EngineOptions& o) { o.recovery.probes_per_second = 0; }},
    {"probation_transfers", [](EngineOptions& o) { o.recovery.probation_transfers = 49; }},
    {"park_max", [](EngineOptions& o) { o.recovery.park_max = -1ms; }},
    {"failed_session_policy",
     [](EngineOptions& o) { o.recovery.policy = static_cast<FailedSessionPolicy>(7); }},
    {"spin", [](EngineOptions& o) { o.spin = -1us; }},
    {"shutdown_grace", [](EngineOptions& o) { o.shutdown_grace = -1ms; }},
    {"user_timeout", [](EngineOptions& o) { o.tcp.user_timeout = 24h * 50; }},
    {"send_buffer_bytes", [](EngineOptions& o) { o.tcp.send_buffer_bytes = -1; }},
    {"data_lanes", [](EngineOptions& o) { o.tcp.data_lanes = 17; }},
    {"local", [](EngineOptions& o) { o.local = static_cast<LocalMode>(9); }},
    {"host", [](EngineOptions& o) { o.host = "127.0.0.1:99"; }},
    {"host", [](EngineOptions& o) { o.host = "127.0.0.1:0"; }},
    {"host", [](EngineOptions& o) { o.host = "[::1]:99"; }},
};

TEST(Validate, NamesTheOptionItsValueAndWhatItMayBe) {
  for (std::size_t i = 0; i < kNonsense.size(); ++i) {
    EngineOptions options;
    kNonsense[i].change(options);
    const Status status = validate(options);
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << i;
    const std::string& text = status.detail();
    EXPECT_TRUE(text.starts_with(std::string(kNonsense[i].option) + " is ")) << text;
    EXPECT_NE(text.find("but must be"), std::string::npos) << text;
  }
}

TEST(Validate, TheDefaultsAndTheirLimitsAreGoodForHealthToo) {
  EngineOptions options;
  EXPECT_TRUE(validate(options).is_ok());
  for (const char* host : {"127.0.0.1", "::1", "[::1]", "localhost"}) {
    options.host = host;
    EXPECT_TRUE(validate(options).is_ok()) << host;
  }
  RecoveryOptions& recovery = options.recovery;
  for (auto* time : {&recovery.progress_deadline, &recovery.heartbeat, &recovery.connect_deadline,
                     &recovery.failure_window, &recovery.probe_first, &recovery.probe_max,
                     &recovery.probe_demand, &recovery.probe_deadline, &recovery.idle_timeout})
    *time = 1ms;
  EXPECT_TRUE(validate(options).is_ok()) << validate(options).detail();
  EXPECT_TRUE(health::validate(session::to_health_options(recovery)).is_ok());
  for (auto* time : {&recovery.progress_deadline, &recovery.heartbeat, &recovery.connect_deadline,
                     &recovery.failure_window, &recovery.probe_first, &recovery.probe_max,
                     &recovery.probe_demand, &recovery.probe_deadline, &recovery.idle_timeout})
    *time = 24h * 365;
  EXPECT_TRUE(validate(options).is_ok()) << validate(options).detail();
  EXPECT_TRUE(health::validate(session::to_health_options(recovery)).is_ok());
}

}  // namespace
}  // namespace kvmend::engine
