// The receiver's end of a link: how it reaches one sender's memory.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "kvmend/status.h"
#include "transport/local/board.h"
#include "transport/local/copy_job.h"
#include "transport/local/fd_loop.h"
#include "transport/local/link_ring.h"
#include "transport/local/link_socket.h"
#include "transport/local/segment_map.h"
#include "wire/control.h"

namespace kvmend::transport::local {

/// Loop thread. Shared by the lanes from one sender.
class SourceLink {
 public:
  /// The process behind it has died. May destroy the link.
  using Gone = std::function<void(const Status&)>;

  /// Checks that the sender runs on this host and belongs to our user, that it is who listens at
  /// its address (by the kernel's word), pins it by a pidfd and says hello. Errors: kUnavailable
  /// with the reason, and those of the calls.
  static Result<std::shared_ptr<SourceLink>> open(FdLoop& fds, const wire::HostIdentity& self,
                                                  Board& board, const wire::HostIdentity& sender,
                                                  Gone gone);

  /// Null until the sender has answered, and after the link broke.
  [[nodiscard]] std::shared_ptr<const SourceMemory> memory() const { return memory_; }
  [[nodiscard]] std::shared_ptr<const SegmentMap> segments() const { return segments_; }
  [[nodiscard]] const std::string& address() const { return address_; }
  /// The sender hasn't answered our hello.
  [[nodiscard]] bool awaits_welcome() const { return !memory_ && fd_.is_open(); }
  /// It won't any more: nothing is pulled over this link; the process is still watched.
  void give_up();
  LinkRing& ring() { return ring_; }
  bool put(std::uint64_t lane, Bytes frame) { return ring_.put(lane, frame, fd_.get()); }

 private:
  SourceLink(PeerProcess process, UniqueFd fd, std::string address, Board& board, Gone gone);
  Status start(FdLoop& fds, const wire::HostIdentity& self, const Board& board);
  void on_readable();
  bool on_message(Received& received);
  bool welcome(Received& received);
  bool map_segment(Received& received);
  void break_off();

  std::shared_ptr<SourceMemory> pending_;  // until the welcome
  std::shared_ptr<SourceMemory> memory_;
  std::shared_ptr<const SegmentMap> segments_ = std::make_shared<SegmentMap>();
  std::string address_;
  Gone gone_;
  LinkRing ring_;
  UniqueFd fd_;
  FdWatch link_watch_;
  FdWatch process_watch_;
};

}  // namespace kvmend::transport::local
