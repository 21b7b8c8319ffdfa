#include "kv/foreign_port.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/config.h"
#include "base/log.h"
#include "session/transfer_state.h"

namespace kvmend::kv {

ForeignPort::ForeignPort(std::unique_ptr<EnginePort> control, std::shared_ptr<ForeignCalls> calls)
    : control_(std::move(control)),
      calls_(std::move(calls)),
      blacklist_(calls_->options()),
      everything_{.ref = {.slot = 0, .generation = 1},
                  .length = std::numeric_limits<std::uint64_t>::max()},
      // A later manager on the same engine doesn't repeat those of an earlier one.
      last_grant_(static_cast<std::uint64_t>(control_->loop().now().time_since_epoch().count())),
      timer_(control_->loop()) {}

ForeignPort::~ForeignPort() {
  calls_->impl().close();
  set_observer(nullptr);
}

void ForeignPort::set_observer(PortObserver* observer) {
  observer_ = observer;
  control_->set_observer(observer_ == nullptr ? nullptr : this);
}

// ---------------------------------------------------------------------------------- memory, grants

const memory::Region* ForeignPort::find_region(const void* /*base*/,
                                               std::uint64_t /*length*/) const {
  return &everything_;
}

Result<RegionRef> ForeignPort::register_memory(void* /*base*/, std::uint64_t /*length*/,
                                               MemoryKind /*kind*/) {
  return everything_.ref;
}

Status ForeignPort::unregister_memory(void* /*base*/) {
  return {};
}

Result<GrantId> ForeignPort::issue_grant(memory::Grant /*grant*/) {
  return *grants_.insert(GrantId(++last_grant_)).first;
}

bool ForeignPort::end_grant(GrantId grant, memory::GrantEnd /*how*/) {
  return grants_.erase(grant) > 0;
}

// Nobody here sees the bytes land: what prefill declares is believed.
std::optional<std::vector<std::uint64_t>> ForeignPort::landed_bytes(GrantId /*grant*/) const {
  return std::nullopt;
}

// ------------------------------------------------------------------------------------------- peers

std::string_view ForeignPort::data_session() const {
  return calls_->options().session_id;
}

const ForeignPort::DataPeer* ForeignPort::data_peer(const Address& peer) const {
  const auto at = peers_.find(peer.to_string());
  return at == peers_.end() ? nullptr : &at->second;
}

void ForeignPort::on_data_session(const Address& peer, Incarnation incarnation,
                                  const std::string& data_session) {
  const std::string name = peer.to_string();
  forget_process(name, incarnation);
  peers_[name] = {incarnation, data_session};
}

void ForeignPort::on_peer_registered(const Address& peer, Incarnation incarnation) {
  control_->on_peer_registered(peer, incarnation);
  const DataPeer* to = data_peer(peer);
  if (to == nullptr || to->incarnation != incarnation) return;
  const std::string session = to->session;
  if (blacklist_.lift(session))
    spdlog::info("kv: session {} has registered anew and is usable again", session);
  pump(session);
  arm();
}

// What another process than `now` held there is of no account any more.
void ForeignPort::forget_process(const std::string& peer, Incarnation now) {
  const auto at = peers_.find(peer);
  if (at != peers_.end() && at->second.incarnation != now) {
    blacklist_.lift(at->second.session);
    peers_.erase(at);
  }
  std::erase_if(undrained_,
                [&](const auto& one) { return one.second.peer == peer && one.first.first != now; });
  publish();
}

void ForeignPort::on_peer_incarnation(const std::string& session_id, Incarnation before,
                                      Incarnation now) {
  forget_process(session_id, now);
  observer_->on_peer_incarnation(session_id, before, now);
}

void ForeignPort::on_peer_died(const std::string& session_id, Incarnation incarnation) {
  const auto at = peers_.find(session_id);
  if (at != peers_.end() && at->second.incarnation == incarnation) forget_process(session_id, {});
  observer_->on_peer_died(session_id, incarnation);
}

std::optional<Blacklisted> ForeignPort::blacklisted(const Address& peer) const {
  const DataPeer* to = data_peer(peer);
  if (to == nullptr || !blacklist_.blacklisted(to->session)) return std::nullopt;
  return Blacklisted{blacklist_.reason(to->session), false};
}

// ------------------------------------------------------------------------------------------ writes

template <class Work>
env::Task ForeignPort::if_alive(Work work) {
  return [alive = std::weak_ptr(alive_), work = std::move(work)]() mutable {
    if (alive.lock()) work();
  };
}

void ForeignPort::refuse(Write write, Status why) {
  loop().post(
      [on_done = std::move(write.on_done), why = std::move(why)]() mutable { on_done(why, {}); });
}

WriteId ForeignPort::write(Write write) {
  const WriteId id(++last_write_);
  const DataPeer* to = data_peer(write.peer);
  if (to == nullptr || to->incarnation != write.target) {
    Status why(Code::kPeerRestarted, Origin::kPeer,
               fmt::format("peer restarted: the process at {} hasn't registered its engine",
                           write.peer.to_string()));
    if (write.group) write.group->ended = why;
    refuse(std::move(write), std::move(why));
    return id;
  }
  const std::string session = to->session;
  if (write.group) groups_[write.group.get()].push_back(id);
  running_.emplace(id, Running{.write = std::move(write), .session = session});
  lanes_[session].waiting.push_back(id);
  blacklist_.on_demand(session, loop().now());
  // Not from inside: the caller learns the id first.
  loop().post(if_alive([this, session] { pump(session); }));
  return id;
}

void ForeignPort::pump(const std::string& session) {
  const auto lane = lanes_.find(session);
  if (lane == lanes_.end()) return;
  Lane& to = lane->second;
  while (!to.waiting.empty() && takes_one_more(session)) {
    const WriteId id = to.waiting.front();
    to.waiting.pop_front();
    Running& running = running_.at(id);
    if (running.write.group && !running.begun) {
      begin_group(id);
    } else {
      call(id, running);
    }
  }
  if (to.waiting.empty() && to.calls == 0) lanes_.erase(lane);
}

bool ForeignPort::takes_one_more(const std::string& session) const {
  if (blacklist_.blacklisted(session)) return false;
  const auto lane = lanes_.find(session);
  const std::uint32_t calls = lane == lanes_.end() ? 0 : lane->second.calls;
  return calls < (blacklist_.on_trial(session) ? 1 : config::kForeignCallsPerSession);
}

// The writes of a group begin together (case R11). While the session of one takes nothing, the
// others stand aside, where they hold up nobody; that one stands in its session's queue, and tries
// for all when its turn comes. `id` is in no queue here.
void ForeignPort::begin_group(WriteId id) {
  const session::TransferGroup* group = running_.at(id).write.group.get();
  std::vector<WriteId>& waiting = groups_.at(group);
  const auto stuck = std::ranges::find_if(
      waiting, [&](WriteId one) { return one != id && !takes_one_more(running_.at(one).session); });
  if (group->ended || stuck != waiting.end()) {
    running_.at(id).aside = true;
    if (!group->ended) queue_again(*stuck);
    return;
  }
  const std::vector<WriteId> members = std::move(waiting);
  groups_.erase(group);
  for (const WriteId one : members) {
    Running& member = running_.at(one);
    if (one != id && !std::exchange(member.aside, false))
      std::erase(lanes_.at(member.session).waiting, one);
    call(one, member);
  }
}

void ForeignPort::queue_again(WriteId id) {
  Running& running = running_.at(id);
  if (std::exchange(running.aside, false)) lanes_[running.session].waiting.push_front(id);
}

// Of a group the others go on with what they wait for.
void ForeignPort::leave_group(WriteId id, const session::TransferGroup* group) {
  const auto at = groups_.find(group);
  if (at == groups_.end()) return;
  std::erase(at->second, id);
  if (at->second.empty()) {
    groups_.erase(at);
    return;
  }
  const WriteId next = at->second.front();
  queue_again(next);
  loop().post(if_alive([this, session = running_.at(next).session] { pump(session); }));
}

void ForeignPort::call(WriteId id, Running& running) {
  running.begun = true;
  ++lanes_[running.session].calls;
  if (running.write.on_begun) std::exchange(running.write.on_begun, nullptr)();
  ForeignCall call{.session = running.session};
  std::uint64_t bytes = 0;
  const std::vector<transport::Piece>& pieces = running.write.pieces;
  while (running.next < pieces.size() && call.lengths.size() < config::kForeignSlicesPerCall &&
         bytes < config::kForeignBytesPerCall) {
    const transport::Piece& piece = pieces[running.next];
    const std::uint64_t length =
        std::min(piece.length - running.skip, config::kForeignBytesPerCall - bytes);
    call.sources.push_back(reinterpret_cast<std::uintptr_t>(piece.local) + running.skip);
    call.targets.push_back(piece.offset + running.skip);
    call.lengths.push_back(length);
    bytes += length;
    running.skip += length;
    if (running.skip < piece.length) continue;
    running.skip = 0;
    ++running.next;
  }
  ++stats_.calls_running;
  publish();
  running.call = calls_->impl().push(
      std::move(call),
      [alive = std::weak_ptr(alive_), loop = &loop(), this, id, session = running.session,
       grant = GrantOf(running.write.target, running.write.grant)](int rc,
                                                                   std::string error) mutable {
        // Here on the caller's thread: only the loop may look at this port.
        loop->post([alive = std::move(alive), this, id, session = std::move(session), grant, rc,
                    error = std::move(error)] {
          if (alive.lock()) on_written(id, session, grant, rc, error);
        });
      });
}

void ForeignPort::on_written(WriteId id, const std::string& session, const GrantOf& grant, int rc,
                             const std::string& error) {
  --stats_.calls_running;
  --lanes_.at(session).calls;
  const Status why =
      rc == 0 && error.empty()
          ? Status::ok()
          : Status{
                Code::kUnavailable, Origin::kPeer,
                error.empty()
                    ? fmt::format("the foreign engine's write to {} returned {}", session, rc)
                    : fmt::format("the foreign engine's write to {} failed: {}", session, error)};
  if (why.is_ok()) {
    blacklist_.on_write_ok(session);
  } else {
    on_write_failed(session, why);
  }
  const auto at = running_.find(id);
  if (at == running_.end()) {  // cancelled meanwhile
    const auto held = undrained_.find(grant);
    if (held != undrained_.end()) {
      --held->second.calls;
      held->second.failed |= !why.is_ok();
      if (held->second.calls == 0 && !held->second.failed) undrained_.erase(held);
    }
  } else if (why.is_ok() && at->second.next < at->second.write.pieces.size()) {
    at->second.call = 0;
    lanes_[session].waiting.push_front(id);
  } else {
    if (!why.is_ok()) mark_undrained(at->second.write, true);
    auto on_done = std::move(at->second.write.on_done);
    running_.erase(at);
    on_done(why, {});
  }
  pump(session);
  arm();
}

void ForeignPort::on_write_failed(const std::string& session, const Status& why) {
  ++stats_.writes_failed;
  if (!blacklist_.blacklisted(session))
    spdlog::warn("kv: session {} is blacklisted: {}", session, why.detail());
  blacklist_.on_write_failed(session, why, loop().now());
}

void ForeignPort::mark_undrained(const Write& write, bool failed) {
  Undrained& held = undrained_[{write.target, write.grant}];
  held.peer = write.peer.to_string();
  if (failed) {
    held.failed = true;
  } else {
    ++held.calls;
  }
}

void ForeignPort::cancel(WriteId write, const Status& why) {
  const auto at = running_.find(write);
  if (at == running_.end()) return;
  Running cancelled = std::move(at->second);
  running_.erase(at);
  if (cancelled.write.group && !cancelled.begun) leave_group(write, cancelled.write.group.get());
  if (cancelled.call == 0) {
    if (!cancelled.aside) std::erase(lanes_.at(cancelled.session).waiting, write);
  } else if (calls_->impl().withdraw(cancelled.call)) {
    --lanes_.at(cancelled.session).calls;
    --stats_.calls_running;
  } else {
    mark_undrained(cancelled.write, false);  // a call that runs can't be taken back
  }
  loop().post(if_alive([this, session = cancelled.session] { pump(session); }));
  publish();
  cancelled.write.on_done(why, {});
}

void ForeignPort::on_shutdown(const Status& why) {
  calls_->impl().close();
  timer_.cancel();
  observer_->on_shutdown(why);
}

// ------------------------------------------------------------------------------------------ probes

void ForeignPort::probe_due() {
  for (ForeignBlacklist::Probe& probe : blacklist_.take_due(loop().now())) {
    ++stats_.probes;
    ++stats_.calls_running;
    ForeignCall call{.kind = ForeignCall::Kind::kProbe, .session = probe.session};
    calls_->impl().push(std::move(call), [alive = std::weak_ptr(alive_), loop = &loop(), this,
                                          probe](int rc, std::string error) mutable {
      loop->post(
          [alive = std::move(alive), this, probe = std::move(probe), rc, error = std::move(error)] {
            if (alive.lock()) on_probed(probe, rc, error);
          });
    });
  }
  pump_all();  // a session that nobody asked for is forgotten: what waits there may try
  arm();
}

void ForeignPort::pump_all() {
  std::vector<std::string> sessions;
  for (const auto& [session, lane] : lanes_) sessions.push_back(session);
  for (const std::string& session : sessions) pump(session);
}

void ForeignPort::on_probed(const ForeignBlacklist::Probe& probe, int rc,
                            const std::string& error) {
  --stats_.calls_running;
  if (!error.empty()) spdlog::warn("kv: probe of {} failed: {}", probe.session, error);
  if (blacklist_.on_probed(probe, error.empty() ? rc : config::kForeignProbeThrew, loop().now()))
    spdlog::info("kv: session {} is usable again", probe.session);
  pump(probe.session);
  arm();
}

void ForeignPort::arm() {
  publish();
  const Time next = blacklist_.next_due();
  if (next == kForever) return timer_.cancel();
  if (timer_.armed() && timer_.when() == next) return;
  timer_.arm(next, [this] { probe_due(); });
}

void ForeignPort::publish() {
  stats_.blacklisted = blacklist_.size();
  stats_.undrained = undrained_.size();
  const ForeignBlacklist::Totals& totals = blacklist_.totals();
  stats_.probes_unavailable = totals.unavailable;
  stats_.probes_outdated = totals.outdated;
  stats_.recoveries = totals.recoveries;
  stats_.relapses = totals.relapses;
  calls_->impl().publish(stats_);
}

}  // namespace kvmend::kv
