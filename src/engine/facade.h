// The thread-safe face of an engine.
#pragma once

#include <atomic>
#include <functional>
#include <memory>

#include "base/thread_annotations.h"
#include "engine/engine_core.h"
#include "engine/local_regions.h"
#include "kvmend/engine.h"

namespace kvmend::engine {

/// Runs everything on the core's loop, which somebody else drives (see runtime/). Any thread.
class EngineFacade final : public Engine {
 public:
  /// `world` owns the loop and must outlive the core; `stop` ends the loop's thread, waits for it
  /// and makes the caller's thread the loop's; called after the core has drained, perhaps twice.
  EngineFacade(std::unique_ptr<EngineCore> core, std::shared_ptr<void> world,
               std::move_only_function<void()> stop);
  ~EngineFacade() override;

  [[nodiscard]] const std::string& session_id() const override { return session_id_; }
  [[nodiscard]] Incarnation incarnation() const override { return core_->incarnation(); }
  [[nodiscard]] std::string admin_url() const override { return admin_url_; }
  Status register_memory(void* base, std::uint64_t length, MemoryKind kind, Access access) override;
  Status register_batch(std::span<const MemoryRange> ranges, MemoryKind kind,
                        Access access) override;
  Status unregister_memory(void* base) override;
  Result<SessionInfo> open_session(std::string_view session_id,
                                   std::chrono::nanoseconds timeout) override;
  Result<TransferHandle> submit(std::string_view session_id, Opcode opcode,
                                std::span<const Slice> slices, TransferOptions options) override;
  Result<PreparedHandle> prepare(std::string_view session_id, PageLayout local,
                                 PageLayout remote) override;
  Result<TransferHandle> submit_pages(const PreparedHandle& prepared, Opcode opcode,
                                      std::span<const std::uint32_t> local_pages,
                                      std::span<const std::uint32_t> remote_pages,
                                      TransferOptions options) override;
  Status transfer(std::string_view session_id, Opcode opcode, std::span<const Slice> slices,
                  TransferOptions options) override;
  Status probe(std::string_view session_id, std::chrono::nanoseconds timeout) override;
  std::future<Result<SessionInfo>> start_open_session(std::string_view session_id,
                                                      std::chrono::nanoseconds timeout) override;
  std::future<Status> start_probe(std::string_view session_id,
                                  std::chrono::nanoseconds timeout) override;
  Result<std::vector<std::pair<std::uint64_t, std::uint64_t>>> peer_regions(
      std::string_view session_id, std::chrono::nanoseconds timeout) override;
  Status notify(std::string_view session_id, const Notification& notification,
                std::chrono::nanoseconds timeout) override;
  std::vector<Notification> take_notifications() override;
  [[nodiscard]] std::vector<SessionInfo> sessions() const override;
  [[nodiscard]] EngineStats stats() const override;
  void shutdown(std::chrono::nanoseconds grace) override;

  /// Something that watches this engine from outside: `stop` runs first at shutdown.
  void set_watcher(std::string url, std::move_only_function<void()> stop) {
    admin_url_ = std::move(url);
    stop_watcher_ = std::move(stop);
  }
  /// Told how many bytes are registered after each change, whoever made it, on the loop thread. Set
  /// it before anybody else has the engine.
  void set_registration_watcher(std::move_only_function<void(std::uint64_t)> told) {
    on_registered_ = std::move(told);
  }
  /// For the layers above, which live on the loop thread too.
  EngineCore& core() { return *core_; }
  /// Runs `work` on the loop thread and waits. Must not be called on it from inside a callback that
  /// the work waits for; on the loop thread itself it runs inline. False: the engine is down.
  bool run_on_loop(std::move_only_function<void()> work) const;

 private:
  [[nodiscard]] Result<Address> parse_peer(std::string_view session_id) const;
  /// `removals`: of the regions that its local addresses were checked against.
  TransferHandle launch(std::shared_ptr<session::TransferState> state, std::uint64_t removals,
                        Opcode opcode, TransferOptions options);
  void forget_local_regions();
  std::shared_ptr<const LocalRegions> local_regions();

  std::shared_ptr<void> world_;  // first: destroyed last
  std::unique_ptr<EngineCore> core_;
  std::shared_ptr<EngineCore*> core_ref_;  // handles hold it weakly
  std::move_only_function<void()> stop_;
  std::move_only_function<void()> stop_watcher_;
  std::move_only_function<void(std::uint64_t)> on_registered_;
  std::string admin_url_;
  std::string session_id_;
  std::chrono::nanoseconds default_deadline_;
  std::atomic<std::uint64_t> next_transfer_{1ULL << 32U};  // apart from the core's own numbers
  std::atomic<bool> down_{false};
  Mutex mutex_;
  std::shared_ptr<const LocalRegions> local_ KVM_GUARDED_BY(mutex_);  // null: ask the loop
  std::uint64_t local_changes_ KVM_GUARDED_BY(mutex_) = 0;
  Mutex shutdown_mutex_;
};

}  // namespace kvmend::engine
