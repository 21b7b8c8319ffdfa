// The engine port over kvmend's own engine.
#pragma once

#include <memory>
#include <unordered_map>

#include "engine/engine_core.h"
#include "kv/engine_port.h"

namespace kvmend::kv {

/// Loop thread, but for construction. The core must outlive it.
class CorePort final : public EnginePort, private engine::CoreObserver {
 public:
  explicit CorePort(engine::EngineCore& core)
      : core_(core), room_events_(dynamic_cast<RoomEvents*>(core.metrics())) {}
  ~CorePort() override { set_observer(nullptr); }

  [[nodiscard]] env::EventLoop& loop() override { return core_.loop(); }
  [[nodiscard]] Incarnation incarnation() const override { return core_.incarnation(); }
  [[nodiscard]] std::string session_id() const override { return core_.session_id(); }
  [[nodiscard]] Status admits() const override { return core_.admits(); }
  void set_observer(PortObserver* observer) override;

  [[nodiscard]] const memory::Region* find_region(const void* base,
                                                  std::uint64_t length) const override;
  Result<RegionRef> register_memory(void* base, std::uint64_t length, MemoryKind kind) override;
  Status unregister_memory(void* base) override;
  Result<GrantId> issue_grant(memory::Grant grant) override;
  bool end_grant(GrantId grant, memory::GrantEnd how) override;
  [[nodiscard]] std::optional<std::vector<std::uint64_t>> landed_bytes(
      GrantId grant) const override;
  WriteId write(Write write) override;
  void cancel(WriteId write, const Status& why) override;
  Status send(const Address& to, Incarnation target, std::string_view body,
              std::string key) override;
  [[nodiscard]] std::optional<Blacklisted> blacklisted(const Address& peer) const override;
  [[nodiscard]] RoomEvents* room_events() override { return room_events_; }
  [[nodiscard]] Incarnation proven_incarnation(const Address& peer) const override;
  void on_peer_registered(const Address& peer, Incarnation incarnation) override;

 private:
  // Running writes; shared with their callbacks, which may outlive the port.
  using Running = std::unordered_map<WriteId, std::shared_ptr<session::TransferState>>;

  void on_upper(const std::string& from, Incarnation sender, std::uint32_t kind,
                Bytes body) override;
  void on_peer_incarnation(const std::string& session_id, Incarnation before,
                           Incarnation now) override;
  void on_peer_died(const std::string& session_id, Incarnation incarnation) override {
    observer_->on_peer_died(session_id, incarnation);
  }
  void on_refused(const std::string& session_id) override {
    observer_->on_session_refused(session_id);
  }
  void on_session_state(const std::string& session_id, std::string_view from, std::string_view to,
                        const Status& cause) override;
  void on_shutdown(const Status& why) override;
  void on_grant_used(const memory::Grant& grant) override;
  void on_grant_expired(const memory::Grant& grant) override;

  engine::EngineCore& core_;
  RoomEvents* const room_events_;
  PortObserver* observer_ = nullptr;
  std::uint64_t last_write_ = 0;
  const std::shared_ptr<Running> running_ = std::make_shared<Running>();
};

}  // namespace kvmend::kv
