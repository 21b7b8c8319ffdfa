// The engine port where somebody else's engine moves the pages: messages and incarnations are those
// of kvmend's own engine, writes become calls of the foreign one (kv/foreign_calls.h).
//
// The foreign engine knows no grants: it writes wherever it is told to, and a call that has failed
// may still be reading and writing. So bytes aren't counted where they land (prefill's word is
// taken), and a grant is undrained as long as a call of it runs, and after one has failed until its
// peer is another process.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kv/engine_port.h"
#include "kv/foreign_blacklist.h"
#include "kv/foreign_calls.h"

namespace kvmend::kv {

/// Loop thread, but for construction.
class ForeignPort final : public EnginePort, private PortObserver {
 public:
  ForeignPort(std::unique_ptr<EnginePort> control, std::shared_ptr<ForeignCalls> calls);
  ~ForeignPort() override;

  [[nodiscard]] env::EventLoop& loop() override { return control_->loop(); }
  [[nodiscard]] Incarnation incarnation() const override { return control_->incarnation(); }
  [[nodiscard]] std::string session_id() const override { return control_->session_id(); }
  [[nodiscard]] Status admits() const override { return control_->admits(); }
  /// Neither grants nor the ends of failed writes prove anything: `rests` says what is known.
  [[nodiscard]] memory::LandingRules landing() const override {
    return {.grants_are_checked = false, .failed_writes_rest = false};
  }
  [[nodiscard]] bool rests(Incarnation target, GrantId grant) const override {
    return !undrained_.contains({target, grant});
  }
  void set_observer(PortObserver* observer) override;
  [[nodiscard]] RoomEvents* room_events() override { return control_->room_events(); }

  /// One region that is all memory: offsets are addresses, which is what the foreign engine takes.
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
              std::string key) override {
    return control_->send(to, target, body, std::move(key));
  }
  [[nodiscard]] std::optional<Blacklisted> blacklisted(const Address& peer) const override;

  [[nodiscard]] std::string_view data_session() const override;
  void on_data_session(const Address& peer, Incarnation incarnation,
                       const std::string& data_session) override;
  [[nodiscard]] Incarnation proven_incarnation(const Address& peer) const override {
    return control_->proven_incarnation(peer);
  }
  void on_peer_registered(const Address& peer, Incarnation incarnation) override;

 private:
  struct DataPeer {
    Incarnation incarnation;
    std::string session;
  };
  struct Running {
    Write write;
    std::string session;     ///< of the foreign engine
    bool begun = false;      ///< of a group all are, or none
    bool aside = false;      ///< waits for another session of its group, beside its own's queue
    std::size_t next = 0;    ///< the first piece that no call has taken
    std::uint64_t skip = 0;  ///< bytes of it that calls have taken
    std::uint64_t call = 0;  ///< that runs or is queued for the foreign engine; 0: none
  };
  struct Lane {
    std::deque<WriteId> waiting;
    std::uint32_t calls = 0;
  };
  using GrantOf = std::pair<Incarnation, GrantId>;  ///< each decode numbers its own
  struct Undrained {
    std::string peer;
    std::uint32_t calls = 0;  ///< that still run though nobody waits for them
    bool failed = false;
  };

  void on_message(const std::string& from, Incarnation sender, Bytes body) override {
    observer_->on_message(from, sender, body);
  }
  void on_peer_incarnation(const std::string& session_id, Incarnation before,
                           Incarnation now) override;
  void on_session_usable(const std::string& session_id) override {
    observer_->on_session_usable(session_id);
  }
  void on_session_refused(const std::string& session_id) override {
    observer_->on_session_refused(session_id);
  }
  void on_peer_died(const std::string& session_id, Incarnation incarnation) override;
  void on_shutdown(const Status& why) override;
  void on_grant_used(RoomId /*room*/, std::uint32_t /*attempt*/) override {}  // nobody sees them
  void on_grant_expired(RoomId room, std::uint32_t attempt, std::uint64_t landed) override {
    observer_->on_grant_expired(room, attempt, landed);
  }

  [[nodiscard]] const DataPeer* data_peer(const Address& peer) const;
  void refuse(Write write, Status why);
  void pump(const std::string& session);
  [[nodiscard]] bool takes_one_more(const std::string& session) const;
  void pump_all();
  void begin_group(WriteId id);
  void queue_again(WriteId id);
  void leave_group(WriteId id, const session::TransferGroup* group);
  void call(WriteId id, Running& running);
  void on_written(WriteId id, const std::string& session, const GrantOf& grant, int rc,
                  const std::string& error);
  void on_write_failed(const std::string& session, const Status& why);
  void mark_undrained(const Write& write, bool failed);
  void forget_process(const std::string& peer, Incarnation now);
  void probe_due();
  void on_probed(const ForeignBlacklist::Probe& probe, int rc, const std::string& error);
  void arm();
  void publish();
  /// Runs `work` on the loop if this port is still there then. Any thread.
  template <class Work>
  env::Task if_alive(Work work);

  const std::unique_ptr<EnginePort> control_;
  const std::shared_ptr<ForeignCalls> calls_;
  ForeignBlacklist blacklist_;
  memory::Region everything_;
  PortObserver* observer_ = nullptr;
  std::uint64_t last_write_ = 0;
  std::uint64_t last_grant_;
  std::set<GrantId> grants_;
  std::map<std::string, DataPeer> peers_;  ///< by control session
  std::unordered_map<WriteId, Running> running_;
  std::map<std::string, Lane> lanes_;  ///< by data session; those with something in them
  /// The writes of a group that hasn't begun. Each holds on to its group.
  std::map<const session::TransferGroup*, std::vector<WriteId>> groups_;
  std::map<GrantOf, Undrained> undrained_;
  ForeignStats stats_;
  env::ScopedTimer timer_;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace kvmend::kv
