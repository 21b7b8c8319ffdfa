// The KV manager's port with an oracle beside it: sees which grants are issued and ended.
#pragma once

#include <functional>
#include <memory>
#include <unordered_map>

#include "kv/core_port.h"
#include "sim/cluster.h"

namespace kvmend::sim {

/// What a room's page should hold: (room, component, buffer, page) -> seed of its pattern.
using PageSeed = std::function<std::uint64_t(RoomId room, std::size_t component, std::size_t buffer,
                                             std::uint32_t page)>;

/// One per manager. Single-threaded. The instance must outlive it.
class WatchedPort : public kv::EnginePort {
 public:
  WatchedPort(Instance& instance, PageSeed seed, bool any_content)
      : instance_(instance),
        inner_(instance.engine()),
        seed_(std::move(seed)),
        any_content_(any_content) {}

  [[nodiscard]] env::EventLoop& loop() override { return inner_.loop(); }
  [[nodiscard]] Incarnation incarnation() const override { return inner_.incarnation(); }
  [[nodiscard]] std::string session_id() const override { return inner_.session_id(); }
  [[nodiscard]] Status admits() const override { return inner_.admits(); }
  void set_observer(kv::PortObserver* observer) override { inner_.set_observer(observer); }
  [[nodiscard]] const memory::Region* find_region(const void* base,
                                                  std::uint64_t length) const override {
    return inner_.find_region(base, length);
  }
  Result<RegionRef> register_memory(void* base, std::uint64_t length, MemoryKind kind) override {
    return inner_.register_memory(base, length, kind);
  }
  Status unregister_memory(void* base) override { return inner_.unregister_memory(base); }
  Result<GrantId> issue_grant(memory::Grant grant) override;
  bool end_grant(GrantId grant, memory::GrantEnd how) override;
  [[nodiscard]] std::optional<std::vector<std::uint64_t>> landed_bytes(
      GrantId grant) const override {
    return inner_.landed_bytes(grant);
  }
  kv::WriteId write(kv::Write write) override { return inner_.write(std::move(write)); }
  void cancel(kv::WriteId write, const Status& why) override { inner_.cancel(write, why); }
  Status send(const Address& to, Incarnation target, std::string_view body,
              std::string key) override {
    return inner_.send(to, target, body, std::move(key));
  }
  [[nodiscard]] std::optional<kv::Blacklisted> blacklisted(const Address& peer) const override {
    return inner_.blacklisted(peer);
  }
  [[nodiscard]] Incarnation proven_incarnation(const Address& peer) const override {
    return inner_.proven_incarnation(peer);
  }
  void on_peer_registered(const Address& peer, Incarnation incarnation) override {
    inner_.on_peer_registered(peer, incarnation);
  }

  /// The application takes a room's pages back: from now on nothing may land in them, whatever the
  /// manager has done.
  void take_back(RoomId room);

 protected:
  [[nodiscard]] Instance& instance() { return instance_; }
  /// Those whose pages the application hasn't taken back.
  [[nodiscard]] std::vector<GrantId> grants() const;

 private:
  /// Whether bytes may land after a grant has ended, until the application takes the pages back.
  [[nodiscard]] virtual bool permits_outlive_grants() const { return false; }

  struct Issued {
    RoomId room;
    PermitId permit;
  };

  Instance& instance_;
  kv::CorePort inner_;
  PageSeed seed_;
  const bool any_content_;
  std::unordered_map<GrantId, Issued> issued_;
};

}  // namespace kvmend::sim
