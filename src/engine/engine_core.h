// The engine on its loop thread: tables, sessions, and what the layers above may ask of them. The
// thread-safe facade is engine/facade.h; the simulation uses this class directly.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/address.h"
#include "engine/validate.h"
#include "env/event_loop.h"
#include "env/network.h"
#include "health/options.h"
#include "kvmend/engine.h"
#include "kvmend/options.h"
#include "memory/grant_table.h"
#include "memory/region_table.h"
#include "session/acceptor.h"
#include "session/health_options.h"
#include "session/session_table.h"
#include "session/transfer_state.h"
#include "transport/lane.h"

namespace kvmend::engine {

/// News for the layers above. Loop thread.
class CoreObserver {
 public:
  virtual ~CoreObserver() = default;
  /// A message of kind `kind` (see `send_upper`) from the engine that listens at `from` ("" when it
  /// doesn't listen).
  virtual void on_upper(const std::string& from, Incarnation sender, std::uint32_t kind,
                        Bytes body) = 0;
  /// The engine at `session_id` is another process now (or has been seen for the first time, then
  /// `before` is unset). Nothing of the old one is usable any more.
  virtual void on_peer_incarnation(const std::string& session_id, Incarnation before,
                                   Incarnation now) = 0;
  /// The process that was `incarnation` has died, by the kernel's word (peers of this host only).
  virtual void on_peer_died(const std::string& /*session_id*/, Incarnation /*incarnation*/) {}
  /// The host of a failed session refuses connections from now on.
  virtual void on_refused(const std::string& /*session_id*/) {}
  /// The session's state changed ("failed" and "probing" mean blacklisted).
  virtual void on_session_state(const std::string& session_id, std::string_view from,
                                std::string_view to, const Status& cause) = 0;
  /// The engine goes down: the last moment to tell peers something. Nothing of it works afterwards.
  virtual void on_shutdown(const Status& /*why*/) {}
  /// The first bytes under a grant are here. No grant may be issued or ended in it.
  virtual void on_grant_used(const memory::Grant& /*grant*/) {}
  /// A grant's time has come.
  virtual void on_grant_expired(const memory::Grant& grant) = 0;
};

/// Loop thread throughout.
class EngineCore {
 public:
  EngineCore(env::Env env, const EngineOptions& options, transport::TransportMaker make_transport,
             session::SessionEvents* metrics);
  ~EngineCore();

  /// Draws the incarnation and listens. Errors as of Engine::create.
  Status start();

  [[nodiscard]] Incarnation incarnation() const { return incarnation_; }
  [[nodiscard]] const Address& address() const { return address_; }  ///< advertised
  [[nodiscard]] std::string session_id() const { return address_.to_string(); }
  [[nodiscard]] env::EventLoop& loop() { return env_.loop; }
  [[nodiscard]] env::Random& random() { return env_.random; }
  [[nodiscard]] const EngineOptions& options() const { return options_; }

  memory::RegionTable& regions() { return regions_; }
  memory::GrantTable& grants() { return grants_; }

  Result<RegionRef> register_memory(void* base, std::uint64_t length, MemoryKind kind,
                                    Access access);
  Status unregister_memory(void* base);

  /// `told` runs after every change of the regions, whoever made it. Loop thread; set it before
  /// the loop runs.
  void set_region_watcher(std::function<void()> told) { regions_changed_ = std::move(told); }

  /// Ends a grant and re-arms the expiry timer. Use this, not grants().end().
  bool end_grant(GrantId grant, memory::GrantEnd how);
  Result<GrantId> issue_grant(memory::Grant grant);

  /// OK, or kShuttingDown: nothing new begins any more.
  [[nodiscard]] Status admits() const;
  /// Queues a transfer on its session (created on demand). Its pieces are given by region, or
  /// (`raw`) by the peer's address in `offset`, to be translated when the peer's regions are known.
  void submit(std::shared_ptr<session::TransferState> transfer);
  void cancel(const std::shared_ptr<session::TransferState>& transfer, const Status& why);

  /// Sends a message of the layer above, reliably and in order per pair of incarnations. `target`
  /// set: dropped (and false returned at once, or later silently) when another incarnation is or
  /// becomes known. `key` (not empty) names what it says: an earlier one that waits is replaced.
  /// Errors: kResourceExhausted (backlog), kPeerRestarted.
  Status send_upper(const Address& to, Incarnation target, std::uint32_t kind, Bytes body,
                    std::string key = {});

  void add_observer(CoreObserver* observer) { observers_.push_back(observer); }
  void remove_observer(CoreObserver* observer);

  /// Who counts, or null: the layers above may find interfaces of their own in it.
  [[nodiscard]] session::SessionEvents* metrics() const { return metrics_; }
  session::SessionTable& sessions() { return *sessions_; }
  session::Acceptor& acceptor() { return *acceptor_; }
  [[nodiscard]] EngineStats stats() const;
  std::vector<Notification> take_notifications();

  /// Stops admitting, tells peers goodbye; `on_drained` runs when nothing is left or `grace` is
  /// over, after which everything has been failed with kShuttingDown.
  void shutdown(Duration grace, env::Task on_drained);
  /// Shortens a shutdown that is under way to `grace` from now; without one, nothing.
  void hurry(Duration grace);

 private:
  class Router;  // implements the observers of session/ and spreads the news

  void arm_expiry();
  void wait_drained();
  void say_goodbye();
  void finish_shutdown();
  void tell_observers(const Status& why);

  env::Env env_;
  EngineOptions options_;
  health::HealthOptions health_options_;
  session::Self self_;
  Incarnation incarnation_;
  Address address_;
  memory::RegionTable regions_;
  memory::GrantTable grants_;
  transport::LaneCounters counters_;
  session::SessionEvents* const metrics_;
  std::unique_ptr<Router> router_;
  transport::TransportMaker make_transport_;
  std::unique_ptr<transport::Transport> transport_;
  std::unique_ptr<session::SessionTable> sessions_;
  std::unique_ptr<session::Acceptor> acceptor_;
  std::function<void()> regions_changed_ = [] {};
  std::vector<CoreObserver*> observers_;
  std::vector<Notification> notifications_;
  std::size_t notification_bytes_ = 0;
  EngineStats stats_;  // the counters that the tables don't keep themselves
  std::uint64_t last_transfer_ = 0;
  env::ScopedTimer expiry_timer_;
  env::ScopedTimer shutdown_timer_;
  bool shutting_down_ = false;
  bool draining_ = false;
  Time drained_by_ = kForever;
  bool silent_ = false;  // goodbye has been said
  env::Task on_drained_;
};

}  // namespace kvmend::engine
