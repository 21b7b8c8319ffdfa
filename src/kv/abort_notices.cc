#include "kv/abort_notices.h"

#include <algorithm>
#include <utility>

#include "base/config.h"

namespace kvmend::kv {

void AbortNotices::send(const RoomKey& key, const wire::KvRoomAbort& message,
                        const std::vector<Peer>& peers, const std::shared_ptr<RoomHandle>& handle) {
  Notice notice{.message = message, .handle = handle};
  for (const Peer& peer : peers)
    if (around_.send(peer, message).is_ok()) notice.peers.push_back(peer);
  if (notice.peers.empty()) {
    if (handle) handle->set_abort_acknowledged();
    return;
  }
  if (waiting_.size() >= config::kMaxAbortNotices) return;  // told once, not repeated
  notice.repeat.start(around_.now());
  notice.until = around_.now() + config::kKvAbortRepeatFor;
  const Time next = notice.repeat.next();
  waiting_.insert_or_assign(key, std::move(notice));
  if (!timer_.armed() || timer_.when() > next) timer_.arm(next, [this] { on_timer(); });
}

bool AbortNotices::on_ack(const RoomKey& key, const Peer& from) {
  const auto at = waiting_.find(key);
  if (at == waiting_.end()) return false;
  const auto answered = [&](const Peer& peer) {
    return peer.session_id == from.session_id && peer.incarnation == from.incarnation;
  };
  if (std::erase_if(at->second.peers, answered) == 0) return false;
  settle(at);
  return true;
}

void AbortNotices::settle(Waiting::iterator at) {
  if (!at->second.peers.empty()) return;
  if (const auto handle = at->second.handle.lock()) handle->set_abort_acknowledged();
  waiting_.erase(at);
  if (waiting_.empty()) timer_.cancel();
}

void AbortNotices::on_incarnation(const std::string& session_id, Incarnation now) {
  for (auto at = waiting_.begin(); at != waiting_.end();) {
    const auto one = at++;
    std::erase_if(one->second.peers, [&](const Peer& peer) {
      return peer.session_id == session_id && peer.incarnation != now;
    });
    settle(one);
  }
}

void AbortNotices::clear() {
  waiting_.clear();
  timer_.cancel();
}

void AbortNotices::arm() {
  Time next = kForever;
  for (const auto& [key, notice] : waiting_)
    next = std::min({next, notice.repeat.next(), notice.until});
  if (next == kForever) return timer_.cancel();
  timer_.arm(next, [this] { on_timer(); });
}

void AbortNotices::on_timer() {
  const Time now = around_.now();
  for (auto at = waiting_.begin(); at != waiting_.end();) {
    const auto one = at++;
    Notice& notice = one->second;
    if (now >= notice.until) {
      waiting_.erase(one);
      continue;
    }
    if (!notice.repeat.due(now)) continue;
    for (const Peer& peer : notice.peers) {
      ++around_.counters.messages_repeated;
      static_cast<void>(around_.send(peer, notice.message));
    }
  }
  arm();
}

}  // namespace kvmend::kv
