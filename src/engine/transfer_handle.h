// The user's end of a transfer.
#pragma once

#include <atomic>
#include <memory>
#include <optional>

#include "base/thread_annotations.h"
#include "engine/engine_core.h"
#include "kvmend/transfer.h"

namespace kvmend::engine {

/// Written once by the loop thread, read by any.
class TransferResult {
 public:
  /// The first call counts; later ones are ignored.
  void set(const Status& status);
  [[nodiscard]] bool is_set() const { return done_.load(std::memory_order_acquire); }
  [[nodiscard]] std::optional<Status> poll() const;
  [[nodiscard]] std::optional<Status> wait(std::chrono::nanoseconds timeout) const;

 private:
  std::atomic<bool> done_{false};
  mutable Mutex mutex_;
  mutable CondVar changed_;
  mutable int waiting_ KVM_GUARDED_BY(mutex_) = 0;
  Status status_;  // written under the mutex before `done_` is set, constant after
};

/// Posts what the user asks for to the loop. The engine may go first.
class LoopTransfer final : public Transfer {
 public:
  /// `world` owns the loop.
  LoopTransfer(std::weak_ptr<EngineCore*> core, std::shared_ptr<session::TransferState> state,
               std::shared_ptr<TransferResult> result, std::weak_ptr<void> world,
               env::EventLoop& loop)
      : core_(std::move(core)),
        state_(std::move(state)),
        result_(std::move(result)),
        world_(std::move(world)),
        loop_(&loop),
        id_(state_->id) {}

  [[nodiscard]] TransferId id() const override { return id_; }
  [[nodiscard]] std::optional<Status> poll() const override { return result_->poll(); }
  [[nodiscard]] std::optional<Status> wait(std::chrono::nanoseconds timeout) const override {
    return result_->wait(timeout);
  }
  void cancel() override;

 private:
  std::weak_ptr<EngineCore*> core_;  // empty once the engine has gone
  std::shared_ptr<session::TransferState> state_;
  std::shared_ptr<TransferResult> result_;
  std::weak_ptr<void> world_;
  env::EventLoop* loop_;  // good while world_ is
  TransferId id_;
};

}  // namespace kvmend::engine
