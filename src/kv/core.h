// The manager on the loop thread: registers the pools, decodes messages, and hands everything to
// its role.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "kv/decode_role.h"
#include "kv/engine_port.h"
#include "kv/layout.h"
#include "kv/prefill_role.h"
#include "kv/role.h"

namespace kvmend::kv {

/// Loop thread throughout. `layout`, `options` and `counters` outlive it.
class Core : private PortObserver {
 public:
  /// Errors: those of registering memory.
  static Result<std::unique_ptr<Core>> open(std::unique_ptr<EnginePort> port, KvRole role,
                                            const KvLayout& layout, const KvOptions& options,
                                            Counters& counters);
  ~Core() override;

  /// Ends every room and takes the pools back. Idempotent; the engine's shutdown does it too.
  void close(const Status& why);
  /// OK, or why it was closed: then there is no role.
  [[nodiscard]] const Status& closed() const { return closed_; }

  /// The role, by name; the other one is nullptr.
  [[nodiscard]] PrefillRole* prefill() { return prefill_; }
  [[nodiscard]] DecodeRole* decode() { return decode_; }

 private:
  Core(std::unique_ptr<EnginePort> port, const KvLayout& layout, const KvOptions& options,
       Counters& counters);

  Status register_pools();
  void unregister_pools();
  void start(KvRole role);

  void on_message(const std::string& from, Incarnation sender, Bytes body) override;
  void on_peer_incarnation(const std::string& session_id, Incarnation before,
                           Incarnation now) override;
  void on_session_usable(const std::string& session_id) override {
    if (role_) role_->on_session_usable(session_id);
  }
  void on_session_refused(const std::string& session_id) override {
    if (role_) role_->on_session_refused(session_id);
  }
  void on_shutdown(const Status& why) override { close(why); }
  void on_peer_died(const std::string& session_id, Incarnation incarnation) override;
  void on_grant_used(RoomId room, std::uint32_t attempt) override;
  void on_grant_expired(RoomId room, std::uint32_t attempt, std::uint64_t landed) override;

  const std::unique_ptr<EnginePort> port_;
  wire::KvLayout described_;
  std::vector<void*> registered_;  // by us: to be taken back
  const Surroundings around_;
  std::unique_ptr<Role> role_;
  Status closed_;
  PrefillRole* prefill_ = nullptr;
  DecodeRole* decode_ = nullptr;
  LogLimiter malformed_log_{std::chrono::seconds{1}};
};

}  // namespace kvmend::kv
