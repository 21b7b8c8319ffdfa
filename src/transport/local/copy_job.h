// One chunk on its way from a peer's memory into ours: copied in steps, each of them allowed anew.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "env/event_loop.h"
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
    kDenied,       ///< we may not read it
    kGone,         ///< the process has died or become another program
    kCorrupt,      ///< the checksum doesn't match
  };

  /// `segments` keeps the mappings; a source that can't be resolved makes the job end with kDenied.
  CopyJob(PullRequest request, std::shared_ptr<const SourceMemory> source,
          std::shared_ptr<const SegmentMap> segments, LocalReceiver* receiver);

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
  struct Part {
    std::byte* to = nullptr;
    std::uint64_t from = 0;  // an address here (mapped) or there (foreign)
    std::uint32_t length = 0;
    bool foreign = false;
  };

  Outcome copy_all(const env::Clock& clock, Board& board, std::size_t reader);
  bool begin_step(const env::Clock& clock, Board& board, std::size_t reader, Outcome& why);
  void end_step(Board& board, std::size_t reader);
  void copy_mapped_step(std::size_t& part, std::uint32_t& offset);
  Outcome copy_foreign_step(std::size_t& part, std::uint32_t& offset);
  void add_to_checksum(const std::byte* at, std::size_t bytes);

  PullRequest request_;
  std::shared_ptr<const SourceMemory> source_;
  std::shared_ptr<const SegmentMap> segments_;
  std::vector<Part> parts_;
  bool unresolved_ = false;
  Outcome outcome_ = Outcome::kStopped;
  std::atomic<bool> stopped_{false};
  std::atomic<bool> in_step_{false};
  std::optional<wire::Checksum> sum_;
};

}  // namespace kvmend::transport::local
