#include "metrics/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <array>
#include <map>
#include <mutex>
#include <sstream>

#include "base/thread_annotations.h"

namespace kvmend::metrics {
namespace {

using prometheus::Histogram;
using prometheus::Registry;

const Histogram::BucketBoundaries kTransferSeconds{1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2,
                                                   3e-2, 0.1,  0.3,  1,    3,    10,   30};
const Histogram::BucketBoundaries kRecoverySeconds{0.01, 0.03, 0.1, 0.2, 0.5, 1,
                                                   2,    5,    10,  30,  60,  300};
constexpr std::array kStates{health::State::kConnecting, health::State::kHealthy,
                             health::State::kSuspect,    health::State::kFailed,
                             health::State::kProbing,    health::State::kRetired};

prometheus::Family<prometheus::Counter>& counter(Registry& registry, const char* name,
                                                 const char* help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
}
prometheus::Family<prometheus::Gauge>& gauge(Registry& registry, const char* name,
                                             const char* help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry);
}
prometheus::Histogram& histogram(Registry& registry, const char* name, const char* help,
                                 const Histogram::BucketBoundaries& buckets) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add({}, buckets);
}

/// Raises a counter to a total that is kept elsewhere.
void raise_to(prometheus::Counter& counter, std::uint64_t total) {
  const double behind = static_cast<double>(total) - counter.Value();
  if (behind > 0) counter.Increment(behind);
}

}  // namespace

struct Metrics::Handles {
  Registry registry;
  prometheus::Family<prometheus::Counter>& bytes = counter(
      registry, "kvmend_bytes_total", "Payload bytes on the wire, by direction (sent, received)");
  prometheus::Counter& sent = bytes.Add({{"direction", "sent"}});
  prometheus::Counter& received = bytes.Add({{"direction", "received"}});
  prometheus::Counter& discarded =
      counter(registry, "kvmend_discarded_bytes_total",
              "Payload bytes that arrived for refused or revoked frames and were thrown away")
          .Add({});
  prometheus::Family<prometheus::Counter>& transfers =
      counter(registry, "kvmend_transfers_total", "Finished transfers, by result (a status code)");
  prometheus::Histogram& transfer_seconds =
      histogram(registry, "kvmend_transfer_seconds", "Submission to end of successful transfers",
                kTransferSeconds);
  prometheus::Counter& retries =
      counter(registry, "kvmend_chunk_retries_total", "Chunks that were sent again").Add({});
  prometheus::Family<prometheus::Gauge>& sessions =
      gauge(registry, "kvmend_sessions", "Outgoing sessions, by state");
  prometheus::Family<prometheus::Counter>& transitions = counter(
      registry, "kvmend_session_transitions_total", "Entries into a session state, by state");
  prometheus::Family<prometheus::Counter>& probes =
      counter(registry, "kvmend_probes_total", "Probes of blacklisted sessions, by result");
  prometheus::Counter& recoveries =
      counter(registry, "kvmend_failed_session_recoveries_total",
              "Blacklisted sessions that became healthy again without anybody's help")
          .Add({});
  prometheus::Counter& restarts = counter(registry, "kvmend_peer_restarts_total",
                                          "Another process answered at a known session's address")
                                      .Add({});
  prometheus::Histogram& detect =
      histogram(registry, "kvmend_time_to_detect_seconds",
                "Last sign of life to blacklisted, of sessions that recovered", kRecoverySeconds);
  prometheus::Histogram& recover = histogram(registry, "kvmend_time_to_recover_seconds",
                                             "Blacklisted to healthy", kRecoverySeconds);
  prometheus::Gauge& suspicion =
      gauge(registry, "kvmend_self_suspicion",
            "1 while most peers seem dead at once, so that the fault is probably here")
          .Add({});
  prometheus::Gauge& regions =
      gauge(registry, "kvmend_registered_bytes", "Bytes in registered regions").Add({});
  prometheus::Gauge& grants = gauge(registry, "kvmend_grants", "Live grants").Add({});
  prometheus::Gauge& lanes =
      gauge(registry, "kvmend_inbound_lanes", "Connections that peers opened").Add({});
  prometheus::Counter& refused =
      counter(registry, "kvmend_refused_frames_total",
              "Data frames answered with an error: no grant, out of range, ...")
          .Add({});
  prometheus::Counter& protocol_errors =
      counter(registry, "kvmend_protocol_errors_total", "Connections closed for malformed bytes")
          .Add({});
  prometheus::Counter& notifications_dropped =
      counter(registry, "kvmend_dropped_notifications_total", "Notifications nobody fetched")
          .Add({});
  std::array<prometheus::Gauge*, kStates.size()> by_state{};
  Mutex expose_mutex;  // two scrapes at once would raise a counter twice

  Handles() {
    for (std::size_t i = 0; i < kStates.size(); ++i)
      by_state[i] = &sessions.Add({{"state", std::string(state_name(kStates[i]))}});
    transfers.Add({{"result", "ok"}});
    for (const char* result : {"passed", "failed"}) probes.Add({{"result", result}});
  }
};

Metrics::Metrics() : handles_(std::make_unique<Handles>()) {}
Metrics::~Metrics() = default;

std::string Metrics::expose(const EngineStats& stats, const std::vector<SessionInfo>& sessions) {
  Handles& h = *handles_;
  const MutexLock lock(h.expose_mutex);
  raise_to(h.sent, stats.bytes_sent);
  raise_to(h.received, stats.bytes_received);
  raise_to(h.discarded, stats.bytes_discarded);
  raise_to(h.refused, stats.frames_refused);
  raise_to(h.protocol_errors, stats.protocol_errors);
  raise_to(h.notifications_dropped, stats.notifications_dropped);
  h.regions.Set(static_cast<double>(stats.registered_bytes));
  h.grants.Set(static_cast<double>(stats.grants));
  h.lanes.Set(static_cast<double>(stats.inbound_lanes));
  std::map<std::string, double, std::less<>> count;
  for (const SessionInfo& session : sessions) ++count[session.state];
  for (std::size_t i = 0; i < kStates.size(); ++i) {
    const auto at = count.find(state_name(kStates[i]));
    h.by_state[i]->Set(at == count.end() ? 0 : at->second);
  }
  std::ostringstream text;
  prometheus::TextSerializer().Serialize(text, h.registry.Collect());
  return text.str();
}

void Metrics::on_recovered(const std::string&, const health::Recovery& recovery) {
  handles_->recoveries.Increment();
  handles_->detect.Observe(to_seconds(recovery.time_to_detect));
  handles_->recover.Observe(to_seconds(recovery.time_to_recover));
}

void Metrics::on_session_state(const std::string&, health::State, health::State to, const Status&) {
  handles_->transitions.Add({{"state", std::string(state_name(to))}}).Increment();
}

void Metrics::on_peer_incarnation(const std::string&, Incarnation before, Incarnation) {
  if (before.is_set()) handles_->restarts.Increment();
}

void Metrics::on_transfer_done(const session::TransferState& transfer, const Status& result,
                               Time now) {
  handles_->transfers.Add({{"result", std::string(code_name(result.code()))}}).Increment();
  if (result.is_ok()) handles_->transfer_seconds.Observe(to_seconds(now - transfer.submitted));
}

void Metrics::on_chunk_retry(const std::string&) {
  handles_->retries.Increment();
}

void Metrics::on_probe_done(const std::string&, const Status& result) {
  handles_->probes.Add({{"result", result.is_ok() ? "passed" : "failed"}}).Increment();
}

void Metrics::on_self_suspicion(bool suspected) {
  handles_->suspicion.Set(suspected ? 1 : 0);
}

}  // namespace kvmend::metrics
