// What the local transport adds to one lane: its pulls, or its offers.
#pragma once

#include <sys/uio.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "memory/region_table.h"

#include "transport/local/copy_job.h"
#include "transport/local/source_link.h"
#include "transport/pull.h"

namespace kvmend::transport::local {

class LocalHub;
class TargetLink;

/// Loop thread.
class LocalReceiver final : public PullReceiver {
 public:
  LocalReceiver(LocalHub& hub, std::shared_ptr<SourceLink> link, std::uint64_t lane,
                PullSink& sink);
  ~LocalReceiver() override;

  [[nodiscard]] bool ready() const override { return link_->memory() != nullptr; }
  void pull(PullRequest request) override;
  void stop(ChunkId chunk) override;
  [[nodiscard]] std::size_t waiting() const override { return waiting_; }
  bool put(Bytes frame) override { return link_->put(lane_, frame); }

  [[nodiscard]] std::uint64_t lane() const { return lane_; }
  [[nodiscard]] SourceLink& link() const { return *link_; }
  PullSink& sink() { return sink_; }
  /// A job of ours is over.
  void answer(const CopyJob& job);

 private:
  LocalHub& hub_;
  std::shared_ptr<SourceLink> link_;
  std::uint64_t lane_;
  PullSink& sink_;
  std::size_t waiting_ = 0;
};

/// Loop thread.
class LocalSender final : public PullSender {
 public:
  LocalSender(LocalHub& hub, std::string address, std::uint64_t lane, PullSink& sink);
  ~LocalSender() override;

  [[nodiscard]] bool ready() const override;
  bool offer(const Chunk& chunk, std::vector<std::byte>& frame) override;
  std::optional<ChunkId> lend(GrantId grant, std::span<const iovec> source,
                              std::vector<wire::PullSource>& sources) override;
  bool withdraw(ChunkId chunk, bool acknowledged) override;
  bool put(Bytes frame) override;
  void give_up(const Status& why) override;

  [[nodiscard]] std::uint64_t lane() const { return lane_; }
  [[nodiscard]] const std::string& address() const { return address_; }
  PullSink& sink() { return sink_; }
  /// Closes the loans that need it, before it goes.
  void on_region_ending(const memory::Region& region);
  void on_grant_ending(GrantId grant);

 private:
  struct Loan {
    GrantId grant;
    std::vector<iovec> source;
  };
  [[nodiscard]] const TargetLink* target() const;
  static bool locate(const TargetLink& target, const std::byte* at, std::uint64_t length,
                     std::size_t& hint, std::vector<wire::PullSource>& sources);
  void close_and_wait(const std::vector<ChunkId>& chunks);

  LocalHub& hub_;
  std::string address_;  ///< of the receiver
  std::uint64_t lane_;
  PullSink& sink_;
  bool given_up_ = false;
  std::unordered_set<ChunkId> offered_;
  std::unordered_map<ChunkId, Loan> lent_;
  std::vector<wire::WireSlice> slices_;
  std::vector<wire::PullSource> sources_;
  std::vector<iovec> bytes_;  // to be summed
};

}  // namespace kvmend::transport::local
