// The local transport of one engine: links to peers of this host, copy threads, and what revocation
// means for copies that run.
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/config.h"
#include "base/log.h"
#include "base/time.h"
#include "memory/pool_registry.h"
#include "memory/region_table.h"
#include "transport/lane.h"
#include "transport/local/board.h"
#include "transport/local/copy_workers.h"
#include "transport/local/fd_loop.h"
#include "transport/local/local_lanes.h"
#include "transport/local/source_link.h"
#include "transport/local/target_link.h"
#include "transport/pull.h"

namespace kvmend::transport::local {

/// Loop thread. Its lanes must be closed before it goes.
class LocalHub final : public PullPort, private memory::RevocationObserver, private env::Poller {
 public:
  /// Listens for links; one that hasn't said who it is after `silence` is closed. Errors: what the
  /// machine doesn't offer (then engines use tcp).
  static Result<std::unique_ptr<LocalHub>> create(const LaneContext& context, FdLoop& fds,
                                                  Duration silence = config::kHandshakeDeadline);
  ~LocalHub() override;

  [[nodiscard]] const wire::HostIdentity& identity() const override { return identity_; }
  std::unique_ptr<PullReceiver> receive_from(const wire::HostIdentity& owner, std::uint64_t lane,
                                             PullSink& sink) override;
  std::unique_ptr<PullSender> send_to(const wire::HostIdentity& receiver, std::uint64_t lane,
                                      PullSink& sink) override;

  // For local_lanes.
  void add(LocalReceiver* receiver) { receivers_.insert(receiver); }
  void remove(LocalReceiver* receiver);
  void add(LocalSender* sender) { senders_.insert(sender); }
  void remove(LocalSender* sender) { senders_.erase(sender); }
  /// The receiver's link at `address`, or null.
  [[nodiscard]] TargetLink* target_at(const std::string& address) const;
  void start(std::shared_ptr<CopyJob> job);
  /// Stops the receiver's job for that chunk; how many there were.
  std::size_t stop(const LocalReceiver* receiver, ChunkId chunk);
  /// Apart from the ids of chunks.
  ChunkId next_loan() { return ChunkId(kLoans | ++last_loan_); }
  Board& board() { return *board_; }
  /// This process's pools, as of a moment ago.
  [[nodiscard]] const std::shared_ptr<const memory::PoolSegments>& pools() const { return pools_; }
  /// Waits until `target` reads nothing of the chunk. False: it is stopped, and was left.
  bool wait_for_reader(const TargetLink& target, ChunkId chunk) const;
  /// Says once for each peer why it is served by tcp.
  void say_fallback(const std::string& peer, const Status& why);

  [[nodiscard]] std::size_t copy_threads() const { return workers_.threads(); }
  [[nodiscard]] std::size_t targets() const { return targets_.size(); }

 private:
  static constexpr std::uint64_t kLoans = 1ULL << 63U;

  LocalHub(const LaneContext& context, FdLoop& fds, wire::HostIdentity identity,
           std::unique_ptr<Board> board, UniqueFd listener, Duration silence);

  // env::Poller: the rings of all links.
  [[nodiscard]] bool ready() const override;
  void run() override;
  void set_awake(bool awake) override { board_->set_awake(awake); }

  void on_region_ending(const memory::Region& region) override;
  void on_grant_ending(GrantId grant) override;

  Status watch_listener();
  void accept_links();
  void accept_link(UniqueFd fd);
  bool shed_silent_link();
  void sweep_links();
  void arm_link_sweep();
  void on_pools_changed();
  void on_source_dead(const std::string& address, const Status& why);
  void on_target_dead(const TargetLink& target, const Status& why);
  void on_target_closed(TargetLink& target);
  void on_jobs_done(std::vector<std::shared_ptr<CopyJob>>& jobs);
  void answer(CopyJob& job);

  LaneContext context_;
  FdLoop& fds_;
  wire::HostIdentity identity_;
  std::unique_ptr<Board> board_;
  UniqueFd listener_;
  FdWatch listener_watch_;
  env::ScopedTimer accept_timer_;
  env::ScopedTimer link_timer_;
  const Duration silence_;
  struct Source {
    std::weak_ptr<SourceLink> link;
    Time since;
  };
  struct Silent {
    const TargetLink* link;
    Time since;
  };
  std::unordered_map<std::string, Source> sources_;  // by their address
  std::deque<Silent> silent_;  // accepted, not known to be ready; oldest first
  LogLimiter refused_log_{config::kLogInterval};
  std::vector<std::unique_ptr<TargetLink>> targets_;
  std::vector<std::unique_ptr<TargetLink>> closed_;  // until this turn is over
  std::unordered_map<std::string, TargetLink*> target_by_address_;
  std::unordered_set<LocalReceiver*> receivers_;
  std::unordered_set<LocalSender*> senders_;
  std::unordered_set<std::shared_ptr<CopyJob>> active_;
  std::unordered_set<std::string> said_;
  std::shared_ptr<const memory::PoolSegments> pools_;
  std::uint64_t last_loan_ = 0;
  std::size_t inline_left_ = config::kInlinePullBudget;
  bool inline_reset_scheduled_ = false;
  std::uint64_t subscription_ = 0;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  CopyWorkers workers_;  // last: its threads end first
};

}  // namespace kvmend::transport::local
