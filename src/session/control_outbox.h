// Reliable control messages to one peer: kept until acknowledged, sent again on every new epoch.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <utility>
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
    std::uint64_t seq = 0;  ///< given when it is first sent on an epoch
    std::vector<std::byte> body;
    TransferId tells_of;  ///< the transfer that is over when this has been handed on
    std::string key;
    bool withdrawn = false;
  };

  /// `key` (if not empty) names what the message says: an earlier one of that key that isn't on its
  /// way is replaced, in its place, so that what its owner repeats while nobody takes it doesn't
  /// pile up. Errors: kResourceExhausted when config::kMaxControlBacklogBytes wait already.
  Status add(std::vector<std::byte> body, TransferId tells_of = {}, std::string key = {}) {
    Message* earlier = key.empty() ? nullptr : replaceable(key);
    const std::size_t freed = earlier == nullptr ? 0 : earlier->body.size();
    if (bytes_ - freed + body.size() > config::kMaxControlBacklogBytes)
      return {Code::kResourceExhausted, Origin::kLocal,
              "too many control messages wait for the peer"};
    bytes_ = bytes_ - freed + body.size();
    if (earlier != nullptr) {
      earlier->body = std::move(body);
      return Status::ok();
    }
    if (!key.empty()) by_key_[key] = taken_ + waiting_.size();
    waiting_.push_back({0, std::move(body), tells_of, std::move(key), false});
    return Status::ok();
  }

  /// Takes back the message that tells of `transfer`, unless it has left already.
  void withdraw(TransferId transfer) {
    for (std::size_t i = unsent_; i < waiting_.size(); ++i) {
      if (waiting_[i].tells_of != transfer) continue;
      bytes_ -= waiting_[i].body.size();
      waiting_[i] = {};
      waiting_[i].withdrawn = true;
      if (i == 0) drop_withdrawn();
      return;
    }
  }

  /// Everything up to `seq` has been handed on by the peer. Returns the transfers told of.
  std::vector<TransferId> acknowledge(std::uint64_t seq) {
    std::vector<TransferId> told;
    while (!waiting_.empty() && waiting_.front().seq != 0 && waiting_.front().seq <= seq) {
      if (waiting_.front().tells_of.is_set()) told.push_back(waiting_.front().tells_of);
      pop_front();
      drop_withdrawn();
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
    on_its_way_ = true;
    last_seq_ = seen;
    for (Message& message : waiting_) message.seq = 0;
    unsent_ = 0;
    return told;
  }

  /// The epoch has gone: nothing is on its way any more.
  void end_epoch() { on_its_way_ = false; }

  /// A new incarnation of the peer: what was meant for the old one is dropped, numbers restart.
  void reset() { *this = ControlOutbox(); }

  /// Calls `send(const Message&)` for what hasn't been sent on this epoch yet.
  template <class Send>
  void send_new(Send&& send) {
    for (; unsent_ < waiting_.size(); ++unsent_) {
      Message& message = waiting_[unsent_];
      if (message.withdrawn) continue;
      message.seq = ++last_seq_;
      send(std::as_const(message));
    }
  }

  [[nodiscard]] bool empty() const { return waiting_.empty(); }
  [[nodiscard]] std::size_t size() const { return waiting_.size(); }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  Message* replaceable(const std::string& key) {
    const auto at = by_key_.find(key);
    if (at == by_key_.end()) return nullptr;
    const std::size_t index = at->second - taken_;
    return on_its_way_ && index < unsent_ ? nullptr : &waiting_[index];
  }
  void pop_front() {
    const Message& front = waiting_.front();
    bytes_ -= front.body.size();
    if (const auto at = by_key_.find(front.key); at != by_key_.end() && at->second == taken_)
      by_key_.erase(at);
    waiting_.pop_front();
    ++taken_;
    if (unsent_ > 0) --unsent_;
  }
  void drop_withdrawn() {
    while (!waiting_.empty() && waiting_.front().withdrawn) pop_front();
  }

  std::deque<Message> waiting_;
  std::unordered_map<std::string, std::uint64_t> by_key_;  // the latest: place since the beginning
  std::uint64_t taken_ = 0;                                // messages that have left `waiting_`
  std::size_t unsent_ = 0;  // index of the first message not sent on this epoch
  std::size_t bytes_ = 0;
  std::uint64_t last_seq_ = 0;
  bool began_ = false;
  bool on_its_way_ = false;  // what lies before `unsent_` travels on a living epoch
};

}  // namespace kvmend::session
