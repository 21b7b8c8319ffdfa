// Reliable control messages to one peer: kept until acknowledged, sent again on every new epoch.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "base/bytes.h"
#include "base/config.h"
#include "kvmend/status.h"

namespace kvmend::session {

/// Exactly once per pair of incarnations: the receiver drops what it has seen. Loop thread.
class ControlOutbox {
 public:
  struct Message {
    std::uint64_t seq = 0;
    std::vector<std::byte> body;
  };

  /// Errors: kResourceExhausted when config::kMaxControlBacklogBytes wait already.
  Result<std::uint64_t> add(std::vector<std::byte> body) {
    if (bytes_ + body.size() > config::kMaxControlBacklogBytes)
      return fail(Code::kResourceExhausted, Origin::kLocal,
                  "too many control messages wait for the peer");
    bytes_ += body.size();
    waiting_.push_back({++last_seq_, std::move(body)});
    return last_seq_;
  }

  /// Everything up to `seq` has been handed on by the peer.
  void acknowledge(std::uint64_t seq) {
    while (!waiting_.empty() && waiting_.front().seq <= seq) {
      bytes_ -= waiting_.front().body.size();
      waiting_.pop_front();
      if (unsent_ > 0) --unsent_;
    }
  }

  /// A new epoch: everything that isn't acknowledged goes again.
  void rewind() { unsent_ = 0; }

  /// A new incarnation of the peer: what was meant for the old one is dropped, numbers restart.
  void reset() { *this = ControlOutbox(); }

  /// Calls `send(const Message&)` for what hasn't been sent on this epoch yet.
  template <class Send>
  void send_new(Send&& send) {
    while (unsent_ < waiting_.size()) send(waiting_[unsent_++]);
  }

  [[nodiscard]] bool empty() const { return waiting_.empty(); }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  /// Whether the message with this number has been acknowledged.
  [[nodiscard]] bool acknowledged(std::uint64_t seq) const {
    return seq <= last_seq_ && (waiting_.empty() || waiting_.front().seq > seq);
  }

 private:
  std::deque<Message> waiting_;
  std::size_t unsent_ = 0;  // index of the first message not sent on this epoch
  std::size_t bytes_ = 0;
  std::uint64_t last_seq_ = 0;
};

}  // namespace kvmend::session
