// Reliable control messages to one peer: kept until acknowledged, sent again on every new epoch.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "base/bytes.h"
#include "base/config.h"
#include "kvmend/ids.h"
#include "kvmend/status.h"

namespace kvmend::session {

/// In order and exactly once per pair of incarnations: the receiver takes only the number that
/// follows the last one it has handed on. Loop thread.
class ControlOutbox {
 public:
  struct Message {
    std::uint64_t seq = 0;
    std::vector<std::byte> body;
    TransferId tells_of;  ///< the transfer that is over when this has been handed on
  };

  /// Errors: kResourceExhausted when config::kMaxControlBacklogBytes wait already.
  Status add(std::vector<std::byte> body, TransferId tells_of = {}) {
    if (bytes_ + body.size() > config::kMaxControlBacklogBytes)
      return {Code::kResourceExhausted, Origin::kLocal,
              "too many control messages wait for the peer"};
    bytes_ += body.size();
    waiting_.push_back({++last_seq_, std::move(body), tells_of});
    return Status::ok();
  }

  /// Everything up to `seq` has been handed on by the peer. Returns the transfers told of.
  std::vector<TransferId> acknowledge(std::uint64_t seq) {
    std::vector<TransferId> told;
    while (!waiting_.empty() && waiting_.front().seq <= seq) {
      if (waiting_.front().tells_of.is_set()) told.push_back(waiting_.front().tells_of);
      bytes_ -= waiting_.front().body.size();
      waiting_.pop_front();
      if (unsent_ > 0) --unsent_;
    }
    return told;
  }

  /// A new epoch, whose handshake says that the peer has handed on everything up to `seen`: the
  /// rest goes again. On the first one `seen` counts what an earlier session told this process, and
  /// a peer that forgot us in the meantime counts from anew: the numbers always follow the peer's.
  std::vector<TransferId> begin_epoch(std::uint64_t seen) {
    std::vector<TransferId> told;
    if (began_) told = acknowledge(seen);
    began_ = true;
    last_seq_ = seen;
    for (Message& message : waiting_) message.seq = ++last_seq_;
    unsent_ = 0;
    return told;
  }

  /// A new incarnation of the peer: what was meant for the old one is dropped, numbers restart.
  void reset() { *this = ControlOutbox(); }

  /// Calls `send(const Message&)` for what hasn't been sent on this epoch yet.
  template <class Send>
  void send_new(Send&& send) {
    while (unsent_ < waiting_.size()) send(waiting_[unsent_++]);
  }

  [[nodiscard]] bool empty() const { return waiting_.empty(); }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  std::deque<Message> waiting_;
  std::size_t unsent_ = 0;  // index of the first message not sent on this epoch
  std::size_t bytes_ = 0;
  std::uint64_t last_seq_ = 0;
  bool began_ = false;
};

}  // namespace kvmend::session
