#include "engine/engine_core.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/config.h"
#include "base/contain.h"
#include "base/log.h"
#include "base/try.h"

namespace kvmend::engine {

/// Spreads the news of acceptor and sessions.
class EngineCore::Router final : public session::AcceptorEvents, public session::SessionEvents {
 public:
  Router(EngineCore& core, session::SessionEvents* metrics) : core_(core), metrics_(metrics) {}

  void on_peer_hello(const std::string& session_id, Incarnation incarnation) override {
    if (session::Session* session = core_.sessions_->find(session_id))
      session->on_peer_hello(incarnation);
  }
  void on_peer_goodbye(const std::string& session_id, const std::string& reason) override {
    std::uint64_t held_back = 0;
    if (goodbye_log_.allow(core_.loop().now(), held_back))
      spdlog::info("{} says goodbye: {} ({} more since)", session_id, reason, held_back);
  }
  void on_upper(const std::string& from, Incarnation sender, std::uint32_t kind,
                Bytes body) override {
    for (CoreObserver* observer : core_.observers_) observer->on_upper(from, sender, kind, body);
  }
  void on_notify(Notification notification) override {
    const std::size_t bytes = notification.name.size() + notification.message.size();
    if (core_.notifications_.size() >= config::kMaxNotifies ||
        core_.notification_bytes_ + bytes > config::kMaxNotifyBytes) {
      ++core_.stats_.notifications_dropped;
      return;
    }
    core_.notification_bytes_ += bytes;
    core_.notifications_.push_back(std::move(notification));
  }

  void on_session_state(const std::string& session_id, health::State from, health::State to,
                        const Status& cause) override {
    spdlog::debug("session {}: {} -> {} ({})", session_id, state_name(from), state_name(to),
                  cause.to_string());
    if (metrics_ != nullptr) metrics_->on_session_state(session_id, from, to, cause);
    for (CoreObserver* observer : core_.observers_)
      observer->on_session_state(session_id, state_name(from), state_name(to), cause);
  }
  void on_recovered(const std::string& session_id, const health::Recovery& recovery) override {
    ++core_.stats_.recoveries;
    if (metrics_ != nullptr) metrics_->on_recovered(session_id, recovery);
  }
  void on_peer_incarnation(const std::string& session_id, Incarnation before,
                           Incarnation now) override {
    if (metrics_ != nullptr) metrics_->on_peer_incarnation(session_id, before, now);
    for (CoreObserver* observer : core_.observers_)
      observer->on_peer_incarnation(session_id, before, now);
  }
  void on_peer_died(const std::string& session_id, Incarnation incarnation) override {
    if (metrics_ != nullptr) metrics_->on_peer_died(session_id, incarnation);
    for (CoreObserver* observer : core_.observers_) observer->on_peer_died(session_id, incarnation);
  }
  void on_refused(const std::string& session_id) override {
    for (CoreObserver* observer : core_.observers_) observer->on_refused(session_id);
  }
  void on_transfer_done(const session::TransferState& transfer, const Status& result,
                        Time now) override {
    ++(result.is_ok() ? core_.stats_.transfers_ok : core_.stats_.transfers_failed);
    if (metrics_ != nullptr) metrics_->on_transfer_done(transfer, result, now);
  }
  void on_chunk_retry(const std::string& session_id) override {
    ++core_.stats_.retries;
    if (metrics_ != nullptr) metrics_->on_chunk_retry(session_id);
  }
  void on_probe_done(const std::string& session_id, const Status& result) override {
    ++(result.is_ok() ? core_.stats_.probes_ok : core_.stats_.probes_failed);
    if (metrics_ != nullptr) metrics_->on_probe_done(session_id, result);
  }
  void on_self_suspicion(bool suspected) override {
    if (metrics_ != nullptr) metrics_->on_self_suspicion(suspected);
  }

 private:
  EngineCore& core_;
  session::SessionEvents* metrics_;
  LogLimiter goodbye_log_{config::kLogInterval};
};

EngineCore::EngineCore(env::Env env, const EngineOptions& options,
                       transport::TransportMaker make_transport, session::SessionEvents* metrics)
    : env_(env),
      options_(options),
      health_options_(session::to_health_options(options.recovery)),
      grants_(regions_, env.random.next()),
      metrics_(metrics),
      router_(std::make_unique<Router>(*this, metrics)),
      make_transport_(std::move(make_transport)),
      expiry_timer_(env.loop),
      shutdown_timer_(env.loop) {
  grants_.set_on_first_use([this](const memory::Grant& grant) {
    for (CoreObserver* observer : observers_) observer->on_grant_used(grant);
  });
}

EngineCore::~EngineCore() {
  if (sessions_) env_.loop.set_gap_handler({});
}

Status EngineCore::start() {
  Status checked = validate(options_);
  if (!checked.is_ok()) return checked;
  checked = health::validate(health_options_);
  if (!checked.is_ok()) return checked;
  auto host = parse_address(options_.host, options_.port);
  if (!host) return host.error();
  host->port = options_.port;
  while (!incarnation_.is_set()) incarnation_ = Incarnation(env_.random.next());

  env::StreamOptions stream;
  stream.congestion =
      options_.tcp.congestion.empty() && host->is_loopback() ? "cubic" : options_.tcp.congestion;
  stream.send_buffer_bytes = options_.tcp.send_buffer_bytes;
  stream.receive_buffer_bytes = options_.tcp.receive_buffer_bytes;
  stream.user_timeout = options_.tcp.user_timeout;
  stream.pacing = options_.tcp.pacing_bytes_per_second;
  transport_ =
      make_transport_(transport::LaneContext{.loop = env_.loop,
                                             .random = env_.random,
                                             .regions = regions_,
                                             .grants = grants_,
                                             .counters = counters_,
                                             .stage_below = options_.tcp.stage_below_bytes},
                      env_.network, stream);
  self_ = {incarnation_, {}, options_};
  acceptor_ =
      std::make_unique<session::Acceptor>(env_.loop, env_.random, self_, regions_, *router_);
  sessions_ = std::make_unique<session::SessionTable>(session::SessionHost::Parts{
      env_.loop, env_.random, *transport_, self_, health_options_, *router_});
  auto bound = transport_->listen(*host, acceptor_.get());
  if (!bound) return bound.error();
  address_ = *bound;
  if (!options_.advertise.empty()) {
    auto advertised = parse_address(options_.advertise, address_.port);
    if (!advertised) return advertised.error();
    address_ = *advertised;
  }
  self_.session_id = address_.to_string();
  env_.loop.set_gap_handler([this](Duration gap) {
    if (!shutting_down_) sessions_->on_gap(gap);
  });
  spdlog::debug("engine {} listens at {}", incarnation_.value, self_.session_id);
  return Status::ok();
}

// --------------------------------------------------------------------------------------- memory

Result<RegionRef> EngineCore::register_memory(void* base, std::uint64_t length, MemoryKind kind,
                                              Access access) {
  KVM_ASSIGN_OR_RETURN(const RegionRef ref, regions_.add(base, length, kind, access));
  if (access != Access::kNone) acceptor_->announce_regions();
  regions_changed_();
  return ref;
}

Status EngineCore::unregister_memory(void* base) {
  const memory::Region* region = regions_.find_containing(base, 1);
  if (region == nullptr || region->base != base)
    return {Code::kNotRegistered, Origin::kCaller,
            fmt::format("no region starts at {:#x}", reinterpret_cast<std::uintptr_t>(base))};
  const memory::Region gone = *region;
  Status removed = regions_.remove(base);
  if (!removed.is_ok()) return removed;
  const Status why(Code::kNotRegistered, Origin::kCaller,
                   fmt::format("the region at {:#x} was deregistered during the transfer",
                               reinterpret_cast<std::uintptr_t>(base)));
  sessions_->for_each(
      [&](session::Session& session) { session.fail_users_of(gone.base, gone.length, why); });
  if (gone.access != Access::kNone) acceptor_->announce_regions();
  regions_changed_();
  return Status::ok();
}

Result<GrantId> EngineCore::issue_grant(memory::Grant grant) {
  auto id = grants_.issue(std::move(grant));
  if (id) arm_expiry();
  return id;
}

bool EngineCore::end_grant(GrantId grant, memory::GrantEnd how) {
  return grants_.end(grant, how);
}

void EngineCore::arm_expiry() {
  const Time when = grants_.next_expiry();
  if (when == kForever || (expiry_timer_.armed() && expiry_timer_.when() <= when)) return;
  expiry_timer_.arm(when, [this] {
    for (const memory::Grant& grant : grants_.expire(env_.loop.now()))
      for (CoreObserver* observer : observers_) observer->on_grant_expired(grant);
    arm_expiry();
  });
}

// ------------------------------------------------------------------------------------- transfers

Status EngineCore::admits() const {
  if (!shutting_down_) return Status::ok();
  return {Code::kShuttingDown, Origin::kLocal, "this engine is shutting down"};
}

void EngineCore::submit(std::shared_ptr<session::TransferState> transfer) {
  const auto refuse = [&](const Status& why) {
    transfer->done = true;
    if (transfer->on_done) std::exchange(transfer->on_done, nullptr)(why);
  };
  if (const Status admitted = admits(); !admitted.is_ok()) return refuse(admitted);
  if (!transfer->id.is_set()) transfer->id = TransferId(++last_transfer_);
  const auto session = sessions_->find_or_create(transfer->peer);
  if (!session) return refuse(session.error());
  (*session)->submit(transfer);
}

void EngineCore::cancel(const std::shared_ptr<session::TransferState>& transfer,
                        const Status& why) {
  if (session::Session* session = sessions_->find(transfer->peer.to_string()))
    session->finish(transfer, why);
}

Status EngineCore::send_upper(const Address& to, Incarnation target, std::uint32_t kind, Bytes body,
                              std::string key) {
  if (silent_) return admits();
  const auto session = sessions_->find_or_create(to);
  if (!session) return session.error();
  return (*session)->send_control(
      wire::Upper{kind, std::string(reinterpret_cast<const char*>(body.data()), body.size())},
      target, std::move(key));
}

void EngineCore::remove_observer(CoreObserver* observer) {
  std::erase(observers_, observer);
}

std::vector<Notification> EngineCore::take_notifications() {
  notification_bytes_ = 0;
  return std::exchange(notifications_, {});
}

EngineStats EngineCore::stats() const {
  EngineStats stats = stats_;
  stats.bytes_sent = counters_.payload_bytes_sent;
  stats.bytes_received = counters_.payload_bytes_received;
  stats.local_bytes_sent = counters_.pulled_bytes_sent;
  stats.local_bytes_received = counters_.pulled_bytes_received;
  stats.bytes_discarded = counters_.payload_bytes_discarded;
  stats.frames_refused = counters_.frames_refused;
  stats.protocol_errors = counters_.protocol_errors;
  stats.regions = regions_.size();
  stats.registered_bytes = regions_.total_bytes();
  stats.inbound_lanes = acceptor_->lanes();
  stats.grants = grants_.size();
  stats.contained_exceptions = contained_exceptions();
  return stats;
}

// -------------------------------------------------------------------------------------- shutdown

void EngineCore::shutdown(Duration grace, env::Task on_drained) {
  if (shutting_down_) {
    if (on_drained) env_.loop.post(std::move(on_drained));
    return;
  }
  shutting_down_ = true;
  on_drained_ = std::move(on_drained);
  if (!acceptor_) {
    tell_observers(admits());
    return finish_shutdown();
  }
  transport_->stop_listening();
  acceptor_->stop_accepting();
  drained_by_ = saturating_add(env_.loop.now(), grace);
  draining_ = true;
  wait_drained();
}

void EngineCore::hurry(Duration grace) {
  if (!draining_) return;
  drained_by_ = std::min(drained_by_, saturating_add(env_.loop.now(), grace));
  wait_drained();
}

void EngineCore::wait_drained() {
  if (sessions_->idle() || env_.loop.now() >= drained_by_) {
    draining_ = false;
    return say_goodbye();
  }
  shutdown_timer_.arm(std::min(drained_by_, env_.loop.now() + config::kDrainPoll),
                      [this] { wait_drained(); });
}

void EngineCore::tell_observers(const Status& why) {
  const std::vector<CoreObserver*> all = observers_;  // they may leave while they are told
  for (CoreObserver* observer : all)
    if (std::ranges::find(observers_, observer) != observers_.end()) observer->on_shutdown(why);
  silent_ = true;
}

void EngineCore::say_goodbye() {
  const Status why = admits();
  tell_observers(why);
  sessions_->for_each([&](session::Session& session) {
    session.fail_all(why);
    session.say_goodbye("shutting down");
  });
  acceptor_->say_goodbye("shutting down");
  // The word goes ahead of the end of the connections, so that peers know the reason.
  shutdown_timer_.arm(env_.loop.now() + config::kDrainPoll, [this] { finish_shutdown(); });
}

void EngineCore::finish_shutdown() {
  expiry_timer_.cancel();
  if (sessions_) sessions_->retire_all();
  if (acceptor_) acceptor_->close_all();
  if (on_drained_) env_.loop.post(std::exchange(on_drained_, nullptr));
}

}  // namespace kvmend::engine
