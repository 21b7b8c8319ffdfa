// Life and recovery of a session; its transfers are in session_transfers.cc.
#include "session/session.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/config.h"
#include "base/contain.h"
#include "base/log.h"
#include "health/probe_schedule.h"

namespace kvmend::session {

using health::Action;
using health::State;

namespace {
constexpr int kRestartsBeforeWaiting = 3;
constexpr auto kTickAgain = std::chrono::milliseconds(100);
}  // namespace

Session::Session(SessionHost& host, Address peer, health::SessionKey key)
    : host_(host),
      peer_(std::move(peer)),
      id_(peer_.to_string()),
      key_(key),
      health_(host.health_options, host.self_view(), host.random.next(), host.loop.now()),
      reconnect_timer_(host.loop),
      tick_(host.loop) {
  epoch_attempt_ = health_.attempt();
  open_epoch();
  arm();
}

Session::~Session() = default;

// ------------------------------------------------------------------------------- what health says

void Session::apply(const health::Outcome& out, const Status& cause) {
  const bool changed = out.from != out.to;
  if (out.has(Action::kDropLanes)) drop_epoch();
  if (changed && out.to == State::kFailed) {
    reconnect_timer_.cancel();  // only a probe's promotion opens an epoch now
    unadmit_all();
  }
  if (changed && out.to == State::kConnecting)
    while (!pair_parked_.empty()) unpark_for_pair(pair_parked_.front());
  if (out.has(Action::kFailOldPlan)) fail_old_plan();
  if (out.has(Action::kCancelProbes)) cancel_probes();
  if (out.has(Action::kReconnect)) {
    epoch_attempt_ = out.attempt;
    open_epoch();
  }
  if (out.has(Action::kScheduleProbe))
    host_.schedule_probe(*this, out.probe_at, out.probe_demanded);
  if (out.has(Action::kHeartbeat) && epoch_ && epoch_->up()) {
    pinging_ = true;
    epoch_->send_ping(host_.random.next());
    epoch_->flush();
  }
  if (changed) {
    const Status& why = cause.is_ok() ? health_.last_cause() : cause;
    host_.events.on_session_state(id_, out.from, out.to, why);
  }
  if (out.has(Action::kAnnounceBlacklisted)) {
    last_detect_ = host_.loop.now() - health_.last_life();
    spdlog::warn("session {} is blacklisted: {}", id_, health_.last_cause().to_string());
    host_.blacklisted(*this);
  }
  if (out.has(Action::kAnnounceRecovered) && out.recovery) {
    last_detect_ = out.recovery->time_to_detect;
    last_recover_ = out.recovery->time_to_recover;
    spdlog::info("session {} recovered after {:.3f} s (lifted by {}; it began with: {})", id_,
                 to_seconds(out.recovery->time_to_recover), lifted_by_name(out.recovery->lifted_by),
                 out.recovery->first_cause.to_string());
    host_.lifted(*this);
    host_.events.on_recovered(id_, *out.recovery);
  }
  if (out.has(Action::kFailParked)) {
    const Status why = refusal();
    std::vector<TransferPtr> parked;
    for (const auto& [id, transfer] : transfers_)
      if (!transfer->admitted) parked.push_back(transfer);
    for (const TransferPtr& transfer : parked) finish(transfer, why);
  }
  if (changed && out.to == State::kFailed) settle_openings(refusal());
  if (changed) settle_if_usable();
  if (out.has(Action::kReleaseParked)) schedule_pump();
  if (out.has(Action::kFree)) {
    const Status why(Code::kSessionFailed, Origin::kLocal,
                     fmt::format("session {} was given up", id_));
    fail_all(why);
    settle_openings(why);
    tick_.cancel();
    reconnect_timer_.cancel();
    host_.lifted(*this);
    host_.retired(*this);
    return;
  }
  if (changed) {
    schedule_pump();
    update_parked();
  }
  arm();
}

Status Session::refusal() const {
  const Status why = health_.refusal();
  return {why.code(), why.origin(), fmt::format("{}: {}", id_, why.detail()), why.sys_errno()};
}

// Health passes over what says nothing about the peer (a shortage here, a refusal for now), but
// whoever asks why nothing moves must be told.
void Session::note_problem(const Status& why) {
  last_problem_ = health::History::shortened(why);
}

std::string Session::last_error() const {
  return last_problem_.is_ok() ? "" : last_problem_.to_string();
}

void Session::failed(const Status& why) {
  const Time now = host_.loop.now();
  apply(health_.on_failure({why, epoch_attempt_, now}, now), why);
}

// ------------------------------------------------------------------------------------------ epochs

void Session::open_epoch() {
  drop_epoch();
  reconnect_timer_.cancel();
  heard_ = false;
  const std::int64_t stretch = host_.self_view().stretch;
  epoch_ = std::make_unique<EpochLanes>(
      host_.loop, host_.transport, host_.self, peer_, health_.peer(), next_epoch_++,
      host_.self.options.recovery.connect_deadline * stretch, static_cast<EpochEvents&>(*this));
  const Status status = epoch_->start();
  if (status.is_ok()) return;
  // A shortage here says nothing about the peer: wait for ports or memory and try again.
  drop_epoch();
  note_problem(status);
  failed(status);
  reconnect_later();
}

// Where health saw no reason to act (a shortage of our own, a refusal that isn't the peer's fault),
// the session itself must go on, also in a trial: only a failed session waits for its probes.
void Session::reconnect_later() {
  const State state = health_.state();
  if (epoch_ || reconnect_timer_.armed() || state == State::kFailed || state == State::kRetired)
    return;
  reconnect_delay_ =
      std::clamp<Duration>(reconnect_delay_ * 2, config::kReconnectFirst, config::kReconnectMax);
  reconnect_timer_.arm(host_.loop.now() + reconnect_delay_, [this] { open_epoch(); });
}

void Session::lost_epoch(const Status& why) {
  drop_epoch();
  note_problem(why);
  failed(why);
  reconnect_later();
}

void Session::drop_epoch() {
  if (!epoch_) return;
  epoch_->close();
  const std::vector<ChunkId> never_left = epoch_->never_left();
  host_.loop.post([epoch = std::move(epoch_)] {});
  pinging_ = false;
  table_asked_ = false;
  outbox_.end_epoch();
  control_watch_.end();
  // What the peer hasn't confirmed goes again over the next epoch. By number: the order of sending.
  std::vector<std::pair<ChunkId, InFlight>> lost;
  lost.reserve(in_flight_.size());
  for (auto& entry : in_flight_) lost.emplace_back(entry.first, std::move(entry.second));
  std::ranges::sort(lost, {}, [](const auto& e) { return e.first; });
  in_flight_.clear();
  in_flight_bytes_ = 0;
  for (auto& [id, chunk] : lost) {
    chunk.span.sent_before = true;
    chunk.transfer->resend.push_back(chunk.span);
    --chunk.transfer->chunks_in_flight;
    if (std::ranges::binary_search(never_left, id)) continue;  // the first time is no retry
    ++chunk.transfer->retries;
    ++retries_;
    host_.events.on_chunk_retry(id_);
  }
  for (auto at = lost.rbegin(); at != lost.rend(); ++at) enqueue(at->second.transfer, true);
}

void Session::on_epoch_up(const wire::HelloAck& ack) {
  const Time now = host_.loop.now();
  reconnect_delay_ = {};
  restarts_in_a_row_ = 0;
  if (outbox_target_ != ack.incarnation) {
    if (outbox_target_.is_set()) outbox_.reset();
    outbox_target_ = ack.incarnation;
  }
  handed_on(outbox_.begin_epoch(ack.control_seq));
  control_received_ = epoch_->control_received();
  if (!pinned_.is_set()) pinned_ = ack.incarnation;
  if (announced_ != ack.incarnation) {
    const Incarnation old = std::exchange(announced_, ack.incarnation);
    host_.events.on_peer_incarnation(id_, old, ack.incarnation);
  }
  watch_process(ack);
  apply(health_.on_connected(ack.incarnation, epoch_attempt_, now));
  if (!epoch_ || !epoch_->up()) return;
  settle_if_usable();
  send_waiting_control();
  pump();
}

void Session::watch_process(const wire::HelloAck& ack) {
  if (watched_ == ack.incarnation || !ack.host) return;
  watched_ = ack.incarnation;
  process_watch_ = host_.transport.watch_process(*ack.host, [this, who = ack.incarnation] {
    spdlog::info("the process at {} has died", id_);
    host_.events.on_peer_died(id_, who);
  });
}

void Session::on_epoch_rejected(const wire::HelloReject& reject) {
  drop_epoch();
  const Status why(reject.code, Origin::kPeer,
                   fmt::format("{} refused the session: {}", id_, reject.message));
  note_problem(why);
  if (reject.code == Code::kPeerRestarted) {
    if (reject.incarnation == health_.peer()) {
      failed({Code::kProtocolError, Origin::kPeer, why.detail()});
    } else {
      apply(health_.on_peer_answered(reject.incarnation, host_.loop.now()), why);
      // Health takes an incarnation that it has seen replaced for late news, but this one answered
      // just now (an older process is back behind a proxy): ask who is there.
      if (health_.peer() != reject.incarnation) failed(why);
    }
    // Several processes that take turns behind one address must not make us dial without end.
    if (++restarts_in_a_row_ > kRestartsBeforeWaiting) drop_epoch();
    return reconnect_later();
  }
  if (reject.code == Code::kStaleEpoch)
    next_epoch_ = std::max(next_epoch_, reject.epoch_seen.value + 1);
  // What no retry can mend is told at once, as it is.
  if (reject.code == Code::kVersionMismatch || reject.code == Code::kAuthFailed) {
    fail_all(why);
    settle_openings(why);
  }
  failed(why);
  reconnect_later();
}

void Session::on_epoch_down(const Status& why) {
  lost_epoch(why);
}

void Session::fail_old_plan() {
  const Incarnation now = health_.peer();
  const Status why(Code::kPeerRestarted, Origin::kPeer,
                   fmt::format("peer restarted: another process answers at {}", id_));
  outbox_.reset();
  outbox_target_ = {};
  regions_.reset();
  regions_builder_.reset();
  if (now.is_set() && announced_ != now) {
    const Incarnation old = std::exchange(announced_, now);
    host_.events.on_peer_incarnation(id_, old, now);
  }
  std::vector<TransferPtr> old_plan;
  for (const auto& [id, transfer] : transfers_)
    if (!now.is_set() || transfer->target != now) old_plan.push_back(transfer);
  std::ranges::sort(old_plan, {}, [](const TransferPtr& t) { return t->id; });
  for (const TransferPtr& transfer : old_plan) finish(transfer, why);
}

// ------------------------------------------------------------------------------------------ probes

void Session::cancel_probes() {
  host_.unschedule_probe(*this);
  for (auto& probe : probes_) {
    host_.loop.post([probe = std::move(probe)] {});
    host_.probe_finished();
  }
  probes_.clear();
}

// No further probe begins
// - while the last one waits at a stopped peer's host, which accepts every connection: its process
//   would find them all when it goes on, in the way of the one that counts;
// - while the peer has answered one and its bytes move: on a slow link two sides that probe each
//   other, and answer each hello with another probe, would share it among so many that none ends in
//   time (kvmend-sim --scenario kv_abort --seed 314);
// but shortly before that one's deadline all the same. In a black hole no hello arrives, and fresh
// connections are what helps.
bool Session::puts_probe_off(Time now) {
  const auto is_new = [&](const auto& probe) {
    return now < probe->started() + health::probe_hold_off(host_.health_options);
  };
  if (std::ranges::any_of(probes_,
                          [&](const auto& probe) { return is_new(probe) && probe->moves(); }))
    return true;
  return !probe_anyway_ && !probes_.empty() && is_new(probes_.back()) &&
         probes_.back()->waits_for_process();
}

void Session::start_probe() {
  const Time now = host_.loop.now();
  if (puts_probe_off(now)) {
    spdlog::debug("probe of {} put off: one is under way", id_);
    host_.probe_finished();
    host_.schedule_probe(*this, now + host_.health_options.probe_demand_interval, true);
    return;
  }
  probe_anyway_ = false;
  const std::int64_t stretch = host_.self_view().stretch;
  auto probe = std::make_unique<Probe>(
      host_.loop, host_.random, host_.transport, host_.self, peer_, Incarnation{},
      now + host_.health_options.probe_deadline * stretch, nullptr);
  Probe* raw = probe.get();
  raw->set_done([this, raw](const ProbeResult& result) { probe_done(raw, result); });
  probes_.push_back(std::move(probe));
  raw->start();
  apply(health_.on_probe_started(now));
}

void Session::probe_done(Probe* probe, const ProbeResult& result) {
  const auto at = std::ranges::find_if(probes_, [&](const auto& p) { return p.get() == probe; });
  if (at == probes_.end()) return;
  const Time started = probe->started();
  host_.loop.post([finished = std::move(*at)] {});
  probes_.erase(at);
  host_.probe_finished();
  host_.events.on_probe_done(id_, result.status);
  spdlog::debug("probe of {} begun {:.3f} s ago: {}", id_, to_seconds(host_.loop.now() - started),
                result.status.to_string());
  const Time now = host_.loop.now();
  if (!result.status.is_ok()) note_problem(result.status);
  const bool refused_before = health_.last_cause().code() == Code::kConnectionRefused;
  apply(result.status.is_ok() ? health_.on_probe_passed(started, result.incarnation, now)
                              : health_.on_probe_failed(started, result.status, now),
        result.status);
  const bool refused = health_.last_cause().code() == Code::kConnectionRefused;
  if (!refused || refused_before || health_.state() != State::kFailed) return;
  limit_parking();
  host_.events.on_refused(id_);
}

// ----------------------------------------------------------------------------------- peer's news

void Session::on_peer_hello(Incarnation incarnation) {
  probe_anyway_ = true;
  apply(health_.on_peer_hello(incarnation, host_.loop.now()));
}

void Session::on_new_registration(Incarnation incarnation) {
  apply(health_.on_new_registration(incarnation, host_.loop.now()));
}

void Session::on_goodbye(const std::string& reason) {
  const Status why(Code::kShuttingDown, Origin::kPeer,
                   fmt::format("{} says goodbye: {}", id_, reason));
  note_problem(why);
  failed(why);
}

void Session::on_gap() {
  const Time now = host_.loop.now();
  control_watch_.forgive(now);
  if (epoch_) epoch_->forgive(now);
  probe_anyway_ = true;
  host_.schedule_probe(*this, now, true);
}

void Session::open(Time deadline, Opened opened) {
  const Time now = host_.loop.now();
  apply(health_.on_demand(now));
  openings_.push_back({deadline, std::move(opened)});
  settle_if_usable();
  update_parked();
  arm();
}

// A suspect session shows by its answer to the heartbeat that it is there; raw users need to know
// the peer's regions too.
void Session::settle_if_usable() {
  const bool usable = health_.state() == State::kHealthy || health_.state() == State::kProbing;
  if (usable && epoch_ && epoch_->up() && regions_) settle_openings(Status::ok());
}

void Session::settle_openings(const Status& status) {
  if (openings_.empty()) return;
  if (status.is_ok()) pinned_ = health_.peer();
  for (Opening& opening : std::exchange(openings_, {})) opening.opened(status);
}

// -------------------------------------------------------------------------------------------
// timers

void Session::update_watch() {
  if (epoch_ && epoch_->up() && (pinging_ || !outbox_.empty())) {
    control_watch_.begin(host_.loop.now());
  } else {
    control_watch_.end();
  }
}

Time Session::silent_at() const {
  if (!epoch_ || !epoch_->up()) return kForever;
  const std::uint32_t stretch = host_.self_view().stretch;
  return std::min(control_watch_.deadline(host_.health_options, stretch),
                  epoch_->silent_at(host_.health_options, stretch));
}

void Session::arm() {
  if (health_.state() == State::kRetired) return;
  update_watch();
  Time when = health_.next_timer();
  if (!deadlines_.empty()) when = std::min(when, deadlines_.begin()->first);
  for (const Opening& opening : openings_) when = std::min(when, opening.deadline);
  const Time silent = silent_at();
  if (silent != kForever) {
    // Bytes that the peer's host acknowledged are seen only by looking.
    const Duration look = host_.health_options.progress_deadline / 8;
    when = std::min({when, silent, host_.loop.now() + look});
  }
  if (tick_.armed() && tick_.when() <= when) return;
  arm_tick(when);
}

// A tick that failed (no memory) mustn't be the last, however often it fails: deadlines hang on it.
void Session::arm_tick(Time when) {
  tick_.arm(when, [this] {
    if (!contain("a session's timer", [this] { on_tick(); }))
      arm_tick(host_.loop.now() + kTickAgain);
  });
}

void Session::on_tick() {
  const Time now = host_.loop.now();
  if (epoch_ && epoch_->up()) {
    epoch_->look(now);
    if (const std::uint64_t received = epoch_->control_received(); received != control_received_) {
      control_received_ = received;
      control_watch_.progress(now);
    }
    if (now >= silent_at()) {
      const Status why(
          Code::kPeerSilent, Origin::kPeer,
          fmt::format("{} took no byte for {} ms", id_,
                      std::chrono::duration_cast<std::chrono::milliseconds>(
                          host_.health_options.progress_deadline * host_.self_view().stretch)
                          .count()));
      lost_epoch(why);
    }
  }
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const auto at = transfers_.find(deadlines_.begin()->second);
    deadlines_.erase(deadlines_.begin());
    if (at == transfers_.end()) continue;
    const TransferPtr transfer = at->second;
    finish(transfer, expired(*transfer));
  }
  if (!openings_.empty()) {
    std::vector<Opening> due;
    for (auto at = openings_.begin(); at != openings_.end();) {
      if (at->deadline <= now) {
        due.push_back(std::move(*at));
        at = openings_.erase(at);
      } else {
        ++at;
      }
    }
    for (Opening& opening : due)
      opening.opened(
          health_.blacklisted()
              ? refusal()
              : Status(Code::kDeadlineExceeded, Origin::kLocal,
                       fmt::format("session {} is still {}{}{}", id_,
                                   health::state_name(health_.state()),
                                   last_problem_.is_ok() ? "" : "; last error: ", last_error())));
  }
  if (now >= health_.next_timer()) apply(health_.on_timer(now));
  arm();
}

void Session::retire() {
  apply(health_.on_retire(host_.loop.now()));
}

SessionInfo Session::info() const {
  const Time now = host_.loop.now();
  SessionInfo info;
  info.session_id = id_;
  info.state = health::state_name(health_.state());
  info.incarnation = health_.peer();
  info.epoch = epoch_ ? epoch_->number() : next_epoch_ - 1;
  info.lanes = epoch_ && epoch_->up() ? static_cast<std::uint32_t>(epoch_->lanes()) : 0;
  info.transport = epoch_ ? epoch_->transport_name() : "none";
  info.queued_transfers = transfers_.size();
  info.pair_parked = pair_parked_.size();
  if (!pair_parked_.empty())
    if (const Session* awaited = host_.blacklisted_of(*pair_parked_.front()->group))
      info.pair_waits_for = awaited->id();
  info.outstanding_bytes = in_flight_bytes_;
  info.bytes_written = bytes_written_;
  info.bytes_read = bytes_read_;
  info.transfers_ok = ok_;
  info.transfers_failed = failed_;
  info.retries = retries_;
  info.recoveries = health_.counters().recoveries;
  info.last_detect_seconds = to_seconds(last_detect_);
  info.last_recover_seconds = to_seconds(last_recover_);
  info.last_error = last_error();
  for (const health::HistoryEntry& entry : health_.history())
    info.history.push_back(
        {to_seconds(now - entry.at), std::string(state_name(entry.from)),
         std::string(state_name(entry.to)),
         entry.cause.is_ok() ? std::string(event_name(entry.event)) : entry.cause.to_string()});
  return info;
}

}  // namespace kvmend::session
