#include "kv/registrations.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/config.h"

namespace kvmend::kv {

using State = Registration::State;

Registrations::Registrations(const Surroundings& around, Host& host, std::uint64_t first_number)
    : around_(around), host_(host), number_(first_number), timer_(around.port.loop()) {}

const Registration* Registrations::find(const std::string& session_id) const {
  const auto at = peers_.find(session_id);
  return at == peers_.end() ? nullptr : &at->second;
}

Result<const Registration*> Registrations::want(const Peer& peer) {
  auto at = peers_.find(peer.session_id);
  if (at == peers_.end()) {
    if (peers_.size() >= config::kMaxKvPeers) {
      auto oldest = peers_.end();
      for (auto it = peers_.begin(); it != peers_.end(); ++it)
        if (it->second.rooms == 0 &&
            (oldest == peers_.end() || it->second.last_use < oldest->second.last_use))
          oldest = it;
      if (oldest == peers_.end())
        return fail(Code::kResourceExhausted, Origin::kLocal,
                    fmt::format("{} prefill engines have live rooms (the maximum)", peers_.size()));
      peers_.erase(oldest);
    }
    at = peers_.try_emplace(peer.session_id).first;
    at->second.peer = peer;
    at->second.peer.incarnation = {};
    around_.counters.peers = peers_.size();
  }
  Registration& entry = at->second;
  ++entry.rooms;
  entry.last_use = ++uses_;
  const bool stale =
      entry.state == State::kRefused && around_.now() - entry.refused >= config::kKvAskRefusedAgain;
  if (entry.state == State::kNone || stale) ask(entry);
  if (entry.state == State::kAsked) arm();
  return &entry;
}

void Registrations::release(const std::string& session_id) {
  const auto at = peers_.find(session_id);
  if (at != peers_.end() && at->second.rooms > 0) --at->second.rooms;
}

void Registrations::ask(Registration& entry) {
  entry.state = State::kAsked;
  entry.repeat.start(around_.now());
  // Whoever answers there is right: the reply tells the incarnation.
  static_cast<void>(
      around_.send({entry.peer.session_id, entry.peer.address, {}},
                   wire::KvRegister{.registration = number_,
                                    .layout = around_.described,
                                    .data_session = std::string(around_.port.data_session())}));
}

void Registrations::lose(Registration& entry) {
  const std::string session_id = entry.peer.session_id;
  entry.state = State::kNone;
  entry.repeat.stop();
  entry.peer.incarnation = {};
  if (entry.rooms > 0) ask(entry);
  arm();
  host_.on_registration_lost(session_id);
}

void Registrations::on_reply(const Peer& from, const wire::KvRegisterReply& message) {
  const auto at = peers_.find(from.session_id);
  if (at == peers_.end()) {
    ++around_.counters.unknown_messages;
    return;
  }
  Registration& entry = at->second;
  if (message.registration == 0) {
    const bool current =
        !entry.peer.incarnation.is_set() || entry.peer.incarnation == from.incarnation;
    if (current && (entry.state == State::kAccepted || entry.state == State::kRefused)) lose(entry);
    return;
  }
  if (message.registration != number_ || entry.state != State::kAsked) return;
  entry.peer.incarnation = from.incarnation;
  entry.repeat.stop();
  if (message.code == Code::kOk) {
    entry.state = State::kAccepted;
    auto coverage = std::make_shared<WriterCoverage>(++answers_, message.coverage);
    coverage->by_component.resize(around_.layout.components.size());
    entry.coverage = std::move(coverage);
  } else {
    entry.state = State::kRefused;
    entry.refused = around_.now();
    entry.refusal = reported_by(from.session_id, message.code, message.detail);
    ++around_.counters.registrations_refused;
  }
  const Registration told = entry;
  // Only what can't be mapped stays refused; anything else is asked again by the next room.
  if (entry.state == State::kRefused && message.code != Code::kIncompatible)
    entry.state = State::kNone;
  arm();
  host_.on_registration(told);
}

void Registrations::on_incarnation(const std::string& session_id, Incarnation now) {
  const auto at = peers_.find(session_id);
  if (at == peers_.end()) return;
  Registration& entry = at->second;
  // Unset: nobody has answered yet; the question may have reached the process that has gone.
  if (entry.peer.incarnation == now) return;
  if (!entry.peer.incarnation.is_set() && entry.state != State::kAsked) return;
  entry.peer.incarnation = {};
  entry.state = State::kNone;
  entry.repeat.stop();
  if (entry.rooms > 0) ask(entry);
  arm();
}

void Registrations::arm() {
  Time next = kForever;
  for (const auto& [id, entry] : peers_)
    if (entry.rooms > 0) next = std::min(next, entry.repeat.next());
  if (next == kForever) return timer_.cancel();
  if (timer_.armed() && timer_.when() == next) return;
  timer_.arm(next, [this] { on_timer(); });
}

void Registrations::on_timer() {
  const Time now = around_.now();
  for (auto& [id, entry] : peers_) {
    if (entry.rooms == 0 || !entry.repeat.due(now)) continue;
    ++around_.counters.messages_repeated;
    static_cast<void>(
        around_.send({entry.peer.session_id, entry.peer.address, {}},
                     wire::KvRegister{.registration = number_,
                                      .layout = around_.described,
                                      .data_session = std::string(around_.port.data_session())}));
  }
  arm();
}

}  // namespace kvmend::kv
