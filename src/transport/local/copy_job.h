// One chunk on its way from a peer's memory into ours: copied in steps, each of them allowed anew.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "env/event_loop.h"
#include "memory/pool_registry.h"
#include "transport/local/board.h"
#include "transport/local/peer_process.h"
#include "transport/local/segment_map.h"
#include "transport/pull.h"
#include "wire/checksum.h"

namespace kvmend::transport::local {

/// What copying needs of the sender. Constant but for `link_open`; any thread.
struct SourceMemory {
  PeerProcess process;
  std::unique_ptr<PeerBoard> board;
  bool foreign = false;  ///< process_vm_readv is permitted
  /// The peer still is the program that we agreed with (its end of the link closes on exec).
  std::atomic<bool> link_open{true};
};

class LocalReceiver;

/// Built by the loop thread, run by one thread, answered by the loop thread.
class CopyJob {
 public:
  enum class Outcome : std::uint8_t {
    kCopied,
    kStopped,      ///< `stop` was called
    kExpired,      ///< the grant's time had come
    kWithdrawn,    ///< the sender has closed the chunk
    kSourceFault,  ///< its memory isn't there (any more)
    kTargetFault,  ///< our own memory isn't: its owner unmapped it without unregistering
    kDenied,       ///< we may not read it
    kGone,         ///< the process has died or become another program
    kCorrupt,      ///< the checksum doesn't match
  };

  /// `segments` keeps the peer's mappings, `own` those of this process's pools. A source that can't
  /// be resolved makes the job end with kDenied.
  CopyJob(PullRequest request, std::shared_ptr<const SourceMemory> source,
          std::shared_ptr<const SegmentMap> segments,
          std::shared_ptr<const memory::PoolSegments> own, LocalReceiver* receiver);

  /// Copies everything. `reader` is this thread's place on `board`. Any one thread, once.
  void run(const env::Clock& clock, Board& board, std::size_t reader);

  /// When this returns, nothing is being written any more, or will be. Waits for one step at most.
  /// Loop thread.
  void stop();

  [[nodiscard]] bool writes_into(const std::byte* base, std::uint64_t length) const;
  [[nodiscard]] const PullRequest& request() const { return request_; }
  [[nodiscard]] Outcome outcome() const { return outcome_; }
  [[nodiscard]] Status status() const;

  LocalReceiver* receiver;  ///< null once it has gone; loop thread

 private:
  // How a part is copied. Stores of our own go only where nobody can unmap the memory under them:
  // to the alias of a pool. Elsewhere the kernel stores, and says when it can't.
  enum class Way : std::uint8_t {
    kStores,     // mapped segment -> alias
    kKernel,     // mapped segment -> any memory of ours
    kOtherSide,  // memory of the peer -> any memory of ours
  };
  struct Part {
    std::byte* to = nullptr;
    std::uint64_t from = 0;  // an address here, or there (kOtherSide)
    std::uint32_t length = 0;
    Way way = Way::kStores;
  };

  /// What is stored to in a pool of ours, at its own addresses.
  struct PoolRange {
    const memory::PoolSegment* pool = nullptr;
    std::byte* low = nullptr;
    std::byte* high = nullptr;
  };

  void note_pool(const memory::PoolSegment& pool, const Part& part);
  Outcome copy_all(const env::Clock& clock, Board& board, std::size_t reader);
  bool begin_step(const env::Clock& clock, Board& board, std::size_t reader, Outcome& why);
  void end_step(Board& board, std::size_t reader);
  void copy_by_stores(std::size_t& part, std::uint32_t& offset);
  Outcome copy_by_kernel(std::size_t& part, std::uint32_t& offset);
  [[nodiscard]] Outcome why_not_copied(Way way, ssize_t got, bool target_is_mapped) const;
  void advance(std::size_t bytes, std::size_t& part, std::uint32_t& offset) const;
  [[nodiscard]] bool pools_are_mapped() const;

  PullRequest request_;
  std::shared_ptr<const SourceMemory> source_;
  std::shared_ptr<const SegmentMap> segments_;
  std::shared_ptr<const memory::PoolSegments> own_;
  std::vector<Part> parts_;
  std::vector<PoolRange> pools_;
  bool unresolved_ = false;
  Outcome outcome_ = Outcome::kStopped;
  std::atomic<bool> stopped_{false};
  std::atomic<bool> in_step_{false};
  std::optional<wire::Checksum> sum_;
};

}  // namespace kvmend::transport::local
