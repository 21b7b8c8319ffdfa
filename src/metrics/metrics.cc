#include "metrics/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <sstream>
#include <vector>

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

/// Counters of a family by status code. Each is looked up once; afterwards an event costs an index
/// and an addition. One thread.
struct ByCode {
  prometheus::Family<prometheus::Counter>& family;
  prometheus::Labels labels;  ///< beside `result`
  std::vector<prometheus::Counter*> known;

  prometheus::Counter& at(Code code) {
    const auto index = static_cast<std::size_t>(code);
    if (index >= known.size()) known.resize(index + 1);
    if (known[index] == nullptr) {
      prometheus::Labels all = labels;
      all["result"] = std::string(code_name(code));
      known[index] = &family.Add(all);
    }
    return *known[index];
  }
};

/// One role's rooms.
struct Rooms {
  prometheus::Gauge& live;
  ByCode ended;
  prometheus::Counter& bytes;
  prometheus::Counter& retries;
  prometheus::Gauge& quarantined;
  prometheus::Gauge& quarantined_pages;
  prometheus::Gauge& quarantine_full;
  std::array<prometheus::Counter*, 4> released{};
  prometheus::Histogram& wait_seconds;
  prometheus::Histogram& transfer_seconds;

  Rooms(Registry& registry, const std::string& role)
      : live(gauge(registry, "kvmend_kv_rooms", "Rooms that haven't ended, by role")
                 .Add({{"role", role}})),
        ended{counter(registry, "kvmend_kv_rooms_total",
                      "Rooms that have ended, by role and result (a status code)"),
              {{"role", role}},
              {}},
        bytes(counter(registry, "kvmend_kv_bytes_total",
                      "Bytes of rooms: acknowledged (prefill), landed (decode)")
                  .Add({{"role", role}})),
        retries(counter(registry, "kvmend_kv_retries_total", "Frames of rooms that were sent again")
                    .Add({{"role", role}})),
        quarantined(gauge(registry, "kvmend_kv_quarantined_rooms",
                          "Rooms that are over and whose pages wait for a proof that nobody "
                          "touches them any more")
                        .Add({{"role", role}})),
        quarantined_pages(gauge(registry, "kvmend_kv_quarantined_pages", "KV pages of those rooms")
                              .Add({{"role", role}})),
        quarantine_full(gauge(registry, "kvmend_kv_quarantine_full",
                              "1 while new rooms are refused since too many pages wait: an alarm")
                            .Add({{"role", role}})),
        wait_seconds(prometheus::BuildHistogram()
                         .Name("kvmend_kv_wait_seconds")
                         .Help("A room's creation to its first byte, or to its end without one")
                         .Register(registry)
                         .Add({{"role", role}}, kTransferSeconds)),
        transfer_seconds(prometheus::BuildHistogram()
                             .Name("kvmend_kv_transfer_seconds")
                             .Help("A room's first byte to Success")
                             .Register(registry)
                             .Add({{"role", role}}, kTransferSeconds)) {
    static_cast<void>(ended.at(Code::kOk));
    auto& family = counter(registry, "kvmend_kv_quarantine_released_total",
                           "Rooms whose pages left the quarantine, by what proved them free "
                           "(drained, gone, fenced) or that nothing did (unproven)");
    for (std::size_t how = 0; how < released.size(); ++how)
      released[how] = &family.Add(
          {{"role", role},
           {"proof", std::string(memory::release_name(static_cast<memory::Release>(how)))}});
  }

  void done(const kv::RoomDone& room) {
    ended.at(room.result).Increment();
    bytes.Increment(static_cast<double>(room.bytes));
    if (room.retries > 0) retries.Increment(static_cast<double>(room.retries));
    wait_seconds.Observe(to_seconds(room.wait));
    if (room.result == Code::kOk) transfer_seconds.Observe(to_seconds(room.transfer));
  }
};

}  // namespace

struct Metrics::Handles {
  Registry registry;
  prometheus::Family<prometheus::Counter>& bytes =
      counter(registry, "kvmend_bytes_total",
              "Payload bytes moved, by direction (sent, received) and transport (tcp, local)");
  prometheus::Counter& tcp_sent = bytes.Add({{"direction", "sent"}, {"transport", "tcp"}});
  prometheus::Counter& tcp_received = bytes.Add({{"direction", "received"}, {"transport", "tcp"}});
  prometheus::Counter& local_sent = bytes.Add({{"direction", "sent"}, {"transport", "local"}});
  prometheus::Counter& local_received =
      bytes.Add({{"direction", "received"}, {"transport", "local"}});
  prometheus::Counter& discarded =
      counter(registry, "kvmend_discarded_bytes_total",
              "Payload bytes that arrived for refused or revoked frames and were thrown away")
          .Add({});
  ByCode transfers{
      counter(registry, "kvmend_transfers_total", "Finished transfers, by result (a status code)"),
      {}};
  prometheus::Histogram& transfer_seconds =
      histogram(registry, "kvmend_transfer_seconds", "Submission to end of successful transfers",
                kTransferSeconds);
  prometheus::Counter& retries =
      counter(registry, "kvmend_chunk_retries_total", "Chunks that were sent again").Add({});
  prometheus::Family<prometheus::Gauge>& sessions =
      gauge(registry, "kvmend_sessions", "Outgoing sessions, by state");
  prometheus::Gauge& parked = gauge(registry, "kvmend_parked_transfers",
                                    "Transfers that wait for their blacklisted session to recover")
                                  .Add({});
  prometheus::Gauge& pair_parked =
      gauge(registry, "kvmend_pair_parked_transfers",
            "Transfers that wait because another session of their pair is blacklisted")
          .Add({});
  prometheus::Family<prometheus::Counter>& transitions = counter(
      registry, "kvmend_session_transitions_total", "Entries into a session state, by state");
  prometheus::Family<prometheus::Counter>& probes =
      counter(registry, "kvmend_probes_total", "Probes of blacklisted sessions, by result");
  prometheus::Counter& probes_passed = probes.Add({{"result", "passed"}});
  prometheus::Counter& probes_failed = probes.Add({{"result", "failed"}});
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
  prometheus::Counter& contained = counter(registry, "kvmend_contained_exceptions_total",
                                           "What memory ran out for, in this process")
                                       .Add({});
  prometheus::Counter& notifications_dropped =
      counter(registry, "kvmend_dropped_notifications_total", "Notifications nobody fetched")
          .Add({});
  Rooms prefill{registry, "prefill"};
  Rooms decode{registry, "decode"};
  prometheus::Gauge& announced =
      gauge(registry, "kvmend_kv_announced_rooms",
            "Rooms that decode has announced and no sender has opened yet")
          .Add({});
  std::array<prometheus::Gauge*, kStates.size()> by_state{};
  std::array<prometheus::Counter*, kStates.size()> into_state{};
  Mutex expose_mutex;  // two scrapes at once would raise a counter twice

  Handles() {
    for (std::size_t i = 0; i < kStates.size(); ++i) {
      const std::string state(state_name(kStates[i]));
      by_state[i] = &sessions.Add({{"state", state}});
      into_state[i] = &transitions.Add({{"state", state}});
    }
    static_cast<void>(transfers.at(Code::kOk));
  }
};

Metrics::Metrics() : handles_(std::make_unique<Handles>()) {}
Metrics::~Metrics() = default;

std::string Metrics::expose(const EngineStats& stats, const std::vector<SessionInfo>& sessions) {
  Handles& h = *handles_;
  const MutexLock lock(h.expose_mutex);
  raise_to(h.tcp_sent, stats.bytes_sent - stats.local_bytes_sent);
  raise_to(h.tcp_received, stats.bytes_received - stats.local_bytes_received);
  raise_to(h.local_sent, stats.local_bytes_sent);
  raise_to(h.local_received, stats.local_bytes_received);
  raise_to(h.discarded, stats.bytes_discarded);
  raise_to(h.refused, stats.frames_refused);
  raise_to(h.protocol_errors, stats.protocol_errors);
  raise_to(h.notifications_dropped, stats.notifications_dropped);
  raise_to(h.contained, stats.contained_exceptions);
  h.regions.Set(static_cast<double>(stats.registered_bytes));
  h.grants.Set(static_cast<double>(stats.grants));
  h.lanes.Set(static_cast<double>(stats.inbound_lanes));
  std::map<std::string, double, std::less<>> count;
  double parked = 0;
  double pair_parked = 0;
  for (const SessionInfo& session : sessions) {
    ++count[session.state];
    pair_parked += static_cast<double>(session.pair_parked);
    if (session.state == state_name(health::State::kFailed))
      parked += static_cast<double>(session.queued_transfers);
  }
  h.parked.Set(parked);
  h.pair_parked.Set(pair_parked);
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
  handles_->into_state[static_cast<std::size_t>(std::ranges::find(kStates, to) - kStates.begin())]
      ->Increment();
}

void Metrics::on_peer_incarnation(const std::string&, Incarnation before, Incarnation) {
  if (before.is_set()) handles_->restarts.Increment();
}

void Metrics::on_transfer_done(const session::TransferState& transfer, const Status& result,
                               Time now) {
  handles_->transfers.at(result.code()).Increment();
  if (result.is_ok()) handles_->transfer_seconds.Observe(to_seconds(now - transfer.submitted));
}

void Metrics::on_chunk_retry(const std::string&) {
  handles_->retries.Increment();
}

void Metrics::on_probe_done(const std::string&, const Status& result) {
  (result.is_ok() ? handles_->probes_passed : handles_->probes_failed).Increment();
}

void Metrics::on_self_suspicion(bool suspected) {
  handles_->suspicion.Set(suspected ? 1 : 0);
}

void Metrics::on_room_done(const kv::RoomDone& done) {
  (done.role == KvRole::kPrefill ? handles_->prefill : handles_->decode).done(done);
}

Quarantined Metrics::quarantined(KvRole role) const {
  const Rooms& of = role == KvRole::kPrefill ? handles_->prefill : handles_->decode;
  return {.rooms = static_cast<std::uint64_t>(of.quarantined.Value()),
          .pages = static_cast<std::uint64_t>(of.quarantined_pages.Value()),
          .full = of.quarantine_full.Value() > 0};
}

void Metrics::on_quarantine(KvRole role, std::size_t rooms, std::uint64_t pages, bool full) {
  Rooms& of = role == KvRole::kPrefill ? handles_->prefill : handles_->decode;
  of.quarantined.Set(static_cast<double>(rooms));
  of.quarantined_pages.Set(static_cast<double>(pages));
  of.quarantine_full.Set(full ? 1 : 0);
}

void Metrics::on_quarantine_released(KvRole role, memory::Release how) {
  Rooms& of = role == KvRole::kPrefill ? handles_->prefill : handles_->decode;
  of.released.at(static_cast<std::size_t>(how))->Increment();
}

void Metrics::on_room_counts(KvRole role, std::size_t rooms, std::size_t announced) {
  (role == KvRole::kPrefill ? handles_->prefill : handles_->decode)
      .live.Set(static_cast<double>(rooms));
  if (role == KvRole::kPrefill) handles_->announced.Set(static_cast<double>(announced));
}

}  // namespace kvmend::metrics
