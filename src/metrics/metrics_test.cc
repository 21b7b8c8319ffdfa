#include "metrics/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvmend::metrics {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

TEST(Metrics, EveryDeclaredMetricIsThereFromTheStart) {
  Metrics metrics;
  const std::string text = metrics.expose({}, {});
  for (const char* name :
       {"kvmend_bytes_total", "kvmend_transfers_total", "kvmend_sessions", "kvmend_probes_total",
        "kvmend_failed_session_recoveries_total", "kvmend_time_to_detect_seconds",
        "kvmend_time_to_recover_seconds", "kvmend_self_suspicion", "kvmend_peer_restarts_total"})
    EXPECT_THAT(text, HasSubstr(name));
}

// Case O1: totals that are kept elsewhere arrive exactly, also when scraped often.
TEST(Metrics, O1_ByteTotalsFollowTheEngineExactly) {
  Metrics metrics;
  EngineStats stats;
  stats.bytes_sent = 1000;
  static_cast<void>(metrics.expose(stats, {}));
  static_cast<void>(metrics.expose(stats, {}));
  stats.bytes_sent = 4096;
  stats.local_bytes_sent = 96;
  const std::string text = metrics.expose(stats, {});
  EXPECT_THAT(text, HasSubstr("kvmend_bytes_total{direction=\"sent\",transport=\"tcp\"} 4000"));
  EXPECT_THAT(text, HasSubstr("kvmend_bytes_total{direction=\"sent\",transport=\"local\"} 96"));
}

// Case O2: a recovery is counted once, with both times.
TEST(Metrics, O2_ARecoveryShowsItsTimes) {
  Metrics metrics;
  metrics.on_recovered("10.0.0.2:7001", {2s, 150ms, health::LiftedBy::kProbe, {}});
  const std::string text = metrics.expose({}, {});
  EXPECT_THAT(text, HasSubstr("kvmend_failed_session_recoveries_total 1"));
  EXPECT_THAT(text, HasSubstr("kvmend_time_to_detect_seconds_sum 2"));
  EXPECT_THAT(text, HasSubstr("kvmend_time_to_recover_seconds_bucket{le=\"0.2\"} 1"));
}

TEST(Metrics, SessionsAreCountedByState) {
  Metrics metrics;
  std::vector<SessionInfo> sessions(3);
  sessions[0].state = "healthy";
  sessions[1].state = "failed";
  sessions[2].state = "failed";
  const std::string text = metrics.expose({}, sessions);
  EXPECT_THAT(text, HasSubstr("kvmend_sessions{state=\"healthy\"} 1"));
  EXPECT_THAT(text, HasSubstr("kvmend_sessions{state=\"failed\"} 2"));
  EXPECT_THAT(metrics.expose({}, {}), HasSubstr("kvmend_sessions{state=\"failed\"} 0"));
}

TEST(Metrics, TransfersAreCountedByResult) {
  Metrics metrics;
  session::TransferState transfer;
  transfer.submitted = Time(1s);
  metrics.on_transfer_done(transfer, Status::ok(), Time(1s + 2ms));
  metrics.on_transfer_done(transfer, Status(Code::kPeerRestarted, Origin::kPeer, "x"), Time(2s));
  const std::string text = metrics.expose({}, {});
  EXPECT_THAT(text, HasSubstr("kvmend_transfers_total{result=\"ok\"} 1"));
  EXPECT_THAT(text, HasSubstr("kvmend_transfers_total{result=\"peer_restarted\"} 1"));
  EXPECT_THAT(text, HasSubstr("kvmend_transfer_seconds_count 1"));
}

// Case O1: what a room reports is what can be read.
TEST(Metrics, O1_RoomsAreCountedByRoleAndResult) {
  Metrics metrics;
  metrics.on_room_counts(KvRole::kPrefill, 7, 3);
  metrics.on_room_done(
      {.role = KvRole::kPrefill, .bytes = 4096, .retries = 2, .wait = 2s, .transfer = 250ms});
  metrics.on_room_done({.role = KvRole::kDecode, .result = Code::kAborted, .wait = 1s});
  const std::string text = metrics.expose({}, {});
  for (const char* line : {
           "kvmend_kv_rooms{role=\"prefill\"} 7",
           "kvmend_kv_announced_rooms 3",
           "kvmend_kv_rooms_total{result=\"ok\",role=\"prefill\"} 1",
           "kvmend_kv_rooms_total{result=\"aborted\",role=\"decode\"} 1",
           "kvmend_kv_bytes_total{role=\"prefill\"} 4096",
           "kvmend_kv_retries_total{role=\"prefill\"} 2",
           "kvmend_kv_wait_seconds_sum{role=\"prefill\"} 2",
           "kvmend_kv_transfer_seconds_sum{role=\"prefill\"} 0.25",
           "kvmend_kv_transfer_seconds_count{role=\"decode\"} 0",
       })
    EXPECT_THAT(text, HasSubstr(line));
}

// Pages without a proof are shown, and too many are an alarm (safety rule 3).
TEST(Metrics, QuarantineIsShownByRole) {
  Metrics metrics;
  metrics.on_quarantine(KvRole::kDecode, 3, 40, true);
  metrics.on_quarantine_released(KvRole::kDecode, memory::Release::kDrained);
  metrics.on_quarantine_released(KvRole::kDecode, memory::Release::kUnproven);
  const std::string text = metrics.expose({}, {});
  for (const char* line : {
           "kvmend_kv_quarantined_rooms{role=\"decode\"} 3",
           "kvmend_kv_quarantined_pages{role=\"decode\"} 40",
           "kvmend_kv_quarantined_pages{role=\"prefill\"} 0",
           "kvmend_kv_quarantine_full{role=\"decode\"} 1",
           "kvmend_kv_quarantine_released_total{proof=\"drained\",role=\"decode\"} 1",
           "kvmend_kv_quarantine_released_total{proof=\"unproven\",role=\"decode\"} 1",
           "kvmend_kv_quarantine_released_total{proof=\"fenced\",role=\"decode\"} 0",
       })
    EXPECT_THAT(text, HasSubstr(line));
  EXPECT_TRUE(metrics.quarantined(KvRole::kDecode).full);
  EXPECT_EQ(metrics.quarantined(KvRole::kDecode).pages, 40U);
  EXPECT_EQ(metrics.quarantined(KvRole::kPrefill).rooms, 0U);
}

TEST(Metrics, TransfersOfAFailedSessionAreParked) {
  Metrics metrics;
  std::vector<SessionInfo> sessions(2);
  sessions[0] = {.state = "healthy", .queued_transfers = 5};
  sessions[1] = {.state = "failed", .queued_transfers = 4};
  EXPECT_THAT(metrics.expose({}, sessions), HasSubstr("kvmend_parked_transfers 4"));
}

}  // namespace
}  // namespace kvmend::metrics
