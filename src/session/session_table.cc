#include "session/session_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/config.h"
#include "base/contain.h"
#include "base/log.h"
#include "base/sabotage.h"
#include "health/pair_health.h"

namespace kvmend::session {

SessionTable::SessionTable(const SessionHost::Parts& parts)
    : SessionHost(parts),
      budget_(parts.health_options),
      ejection_(parts.health_options),
      probe_timer_(parts.loop),
      suspicion_timer_(parts.loop) {}

SessionTable::~SessionTable() = default;

Result<Session*> SessionTable::find_or_create(const Address& peer) {
  const std::string id = peer.to_string();
  if (Session* known = find(id)) return known;
  if (by_id_.size() >= config::kMaxSessions)
    return fail(Code::kResourceExhausted, Origin::kLocal,
                fmt::format("{} sessions are open already", by_id_.size()));
  const health::SessionKey key(++last_key_);
  auto session = std::make_unique<Session>(static_cast<SessionHost&>(*this), peer, key);
  Session* raw = session.get();
  by_key_.emplace(key, raw);
  by_id_.emplace(id, std::move(session));
  ejection_.set_active(by_id_.size(), loop.now());
  return raw;
}

Session* SessionTable::find(const std::string& session_id) const {
  const auto at = by_id_.find(session_id);
  return at == by_id_.end() ? nullptr : at->second.get();
}

void SessionTable::probe(const Address& peer, Time deadline, Probe::Done done) {
  auto probe = std::make_unique<Probe>(loop, random, transport, self, peer, Incarnation{}, deadline,
                                       nullptr);
  Probe* raw = probe.get();
  raw->set_done([this, raw, done = std::move(done)](const ProbeResult& result) mutable {
    const auto at =
        std::ranges::find_if(user_probes_, [&](const auto& p) { return p.get() == raw; });
    if (at == user_probes_.end()) return;  // the engine went down in this very turn
    loop.post([finished = std::move(*at)] {});
    user_probes_.erase(at);
    done(result);
  });
  user_probes_.push_back(std::move(probe));
  raw->start();
}

void SessionTable::on_gap(Duration gap) {
  spdlog::warn("this process stood still for {:.3f} s: greeting {} peers", to_seconds(gap),
               by_id_.size());
  for_each([](Session& session) { session.on_gap(); });
}

void SessionTable::for_each(const std::function<void(Session&)>& visit) {
  std::vector<health::SessionKey> keys;
  keys.reserve(by_key_.size());
  for (const auto& [key, session] : by_key_) keys.push_back(key);
  std::ranges::sort(keys);
  for (const health::SessionKey key : keys) {
    const auto at = by_key_.find(key);  // a visit may retire others
    if (at != by_key_.end()) visit(*at->second);
  }
}

void SessionTable::retire_all() {
  for_each([](Session& session) { session.retire(); });
  for (auto& probe : user_probes_) loop.post([finished = std::move(probe)] {});
  user_probes_.clear();
}

bool SessionTable::idle() const {
  return std::ranges::all_of(by_id_, [](const auto& entry) { return entry.second->idle(); });
}

// ----------------------------------------------------------------------------------------- pairs

health::Admission::Verdict SessionTable::admit_group(TransferGroup& group) {
  using Verdict = health::Admission::Verdict;
  std::vector<TransferPtr> transfers;
  std::vector<Session*> sessions;
  std::vector<health::SessionHealth*> pair;
  for (const auto& member : group.members) {
    TransferPtr transfer = member.lock();
    if (!transfer || transfer->done || transfer->admitted) continue;
    Session* session = find(transfer->peer.to_string());
    if (session == nullptr) continue;
    transfers.push_back(std::move(transfer));
    sessions.push_back(session);
    pair.push_back(&session->health_of_group());
  }
  if (group.ended) {
    end_group(group, *group.ended);
    return Verdict::kRefuse;
  }
  const health::PairAdmission admission = health::admit_pair(pair);
  if (admission.dispatched())
    for (std::size_t i = 0; i < transfers.size(); ++i)
      sessions[i]->admitted(transfers[i], admission.tickets[i]);
  if (admission.verdict == Verdict::kRefuse)
    end_group(group, sessions[admission.decided_by]->refusal());
  return admission.verdict;
}

void SessionTable::end_group(TransferGroup& group, const Status& why) {
  group.ended = why;
  const auto members = group.members;
  for (const auto& member : members) {
    const TransferPtr transfer = member.lock();
    if (!transfer || transfer->done || transfer->admitted) continue;
    if (Session* session = find(transfer->peer.to_string())) session->finish(transfer, why);
  }
}

const Session* SessionTable::blacklisted_of(const TransferGroup& group) const {
  for (const auto& member : group.members) {
    const TransferPtr transfer = member.lock();
    if (!transfer || transfer->done || transfer->admitted) continue;
    const Session* session = find(transfer->peer.to_string());
    if (session != nullptr && session->health().blacklisted()) return session;
  }
  return nullptr;
}

// ------------------------------------------------------------------------------------ the budget

void SessionTable::schedule_probe(Session& session, Time when, bool demanded) {
  budget_.schedule(session.key(), when, demanded);
  arm_probes();
}

void SessionTable::unschedule_probe(Session& session) {
  budget_.remove(session.key());
}

void SessionTable::probe_finished() {
  budget_.finished();
  arm_probes();
}

void SessionTable::arm_probes() {
  if (running_probes_) return;
  const Time when = budget_.next_at();
  if (when == kForever) {
    probe_timer_.cancel();
    return;
  }
  if (probe_timer_.armed() && probe_timer_.when() <= when) return;
  probe_timer_.arm(when, [this] {
    if (contain("starting probes", [this] { run_probes(); })) return;
    running_probes_ = false;
    probe_timer_.arm(loop.now() + health_options.probe_demand_interval, [this] { run_probes(); });
  });
}

void SessionTable::run_probes() {
  running_probes_ = true;
  while (const auto key = budget_.take(loop.now())) {
    const auto at = by_key_.find(*key);
    if (at == by_key_.end()) {
      budget_.finished();
      continue;
    }
    at->second->start_probe();
  }
  running_probes_ = false;
  arm_probes();
}

void SessionTable::blacklisted(Session& session) {
  ejection_.on_blacklisted(session.key(), loop.now());
  update_suspicion();
}

void SessionTable::lifted(Session& session) {
  ejection_.on_lifted(session.key(), loop.now());
  update_suspicion();
}

void SessionTable::update_suspicion() {
  const bool suspected = ejection_.view().suspected;
  if (suspected != suspected_) {
    suspected_ = suspected;
    if (suspected)
      spdlog::error(
          "{} of {} sessions were lost at once: the fault is probably on this side; waiting longer",
          ejection_.blacklisted(), by_id_.size());
    events.on_self_suspicion(suspected);
  }
  const Time when = ejection_.next_at();
  if (when == kForever) {
    suspicion_timer_.cancel();
    return;
  }
  suspicion_timer_.arm(when, [this] {
    ejection_.on_timer(loop.now());
    update_suspicion();
  });
}

void SessionTable::retired(Session& session) {
  budget_.remove(session.key());
  by_key_.erase(session.key());
  const auto at = by_id_.find(session.id());
  if (at == by_id_.end()) return;
  // It is on the call stack.
  loop.post([gone = std::move(at->second)] {});
  by_id_.erase(at);
  ejection_.set_active(by_id_.size(), loop.now());
}

}  // namespace kvmend::session
