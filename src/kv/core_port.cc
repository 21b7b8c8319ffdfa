#include "kv/core_port.h"

#include <numeric>
#include <utility>

#include "wire/kv_messages.h"

namespace kvmend::kv {

void CorePort::set_observer(PortObserver* observer) {
  if (observer_ != nullptr) core_.remove_observer(this);
  observer_ = observer;
  if (observer_ != nullptr) core_.add_observer(this);
}

const memory::Region* CorePort::find_region(const void* base, std::uint64_t length) const {
  return core_.regions().find_containing(base, length);
}

Result<RegionRef> CorePort::register_memory(void* base, std::uint64_t length, MemoryKind kind) {
  return core_.register_memory(base, length, kind, Access::kNone);
}

Status CorePort::unregister_memory(void* base) {
  return core_.unregister_memory(base);
}

Result<GrantId> CorePort::issue_grant(memory::Grant grant) {
  return core_.issue_grant(std::move(grant));
}

bool CorePort::end_grant(GrantId grant, memory::GrantEnd how) {
  return core_.end_grant(grant, how);
}

std::optional<std::vector<std::uint64_t>> CorePort::landed_bytes(GrantId grant) const {
  const memory::Grant* found = core_.grants().find(grant);
  if (found == nullptr) return std::nullopt;
  return found->landed_bytes;
}

WriteId CorePort::write(Write write) {
  const WriteId id(++last_write_);
  auto transfer = std::make_shared<session::TransferState>();
  transfer->peer = std::move(write.peer);
  transfer->target = write.target;
  transfer->grant = write.grant;
  transfer->checksum = write.checksum;
  transfer->submitted = core_.loop().now();
  transfer->deadline = write.deadline;
  transfer->pieces = std::move(write.pieces);
  if (write.group) {
    write.group->members.push_back(transfer);
    transfer->group = std::move(write.group);
  }
  // The engine may refuse inside `submit`; our caller is told later.
  const auto inside = std::make_shared<bool>(true);
  transfer->on_done = [id, inside, running = running_, loop = &core_.loop(),
                       on_done = std::move(write.on_done)](const Status& result) mutable {
    WriteCost cost;
    if (const auto at = running->find(id); at != running->end()) {
      cost = {.retries = at->second->retries, .bytes = at->second->acked_bytes};
      running->erase(at);
    }
    if (!*inside) return on_done(result, cost);
    loop->post([on_done = std::move(on_done), result, cost]() mutable { on_done(result, cost); });
  };
  transfer->on_begun = std::move(write.on_begun);
  running_->emplace(id, transfer);
  core_.submit(std::move(transfer));
  *inside = false;
  return id;
}

void CorePort::cancel(WriteId write, const Status& why) {
  const auto at = running_->find(write);
  if (at == running_->end()) return;
  const auto transfer = at->second;
  core_.cancel(transfer, why);
}

Status CorePort::send(const Address& to, Incarnation target, std::string_view body,
                      std::string key) {
  return core_.send_upper(to, target, wire::kUpperKv,
                          {reinterpret_cast<const std::byte*>(body.data()), body.size()},
                          std::move(key));
}

std::optional<Blacklisted> CorePort::blacklisted(const Address& peer) const {
  session::Session* session = core_.sessions().find(peer.to_string());
  if (session == nullptr || !session->health().blacklisted()) return std::nullopt;
  return Blacklisted{
      .reason = session->refusal(),
      .refuses = session->refuses(),
      .trial = session->state() == health::State::kProbing,
      .park_until = session->health().park_until(kForever, core_.loop().now()),
  };
}

Incarnation CorePort::proven_incarnation(const Address& peer) const {
  const session::Session* session = core_.sessions().find(peer.to_string());
  return session == nullptr ? Incarnation{} : session->incarnation();
}

void CorePort::on_peer_registered(const Address& peer, Incarnation incarnation) {
  const auto session = core_.sessions().find_or_create(peer);
  if (session) (*session)->on_new_registration(incarnation);
}

void CorePort::on_upper(const std::string& from, Incarnation sender, std::uint32_t kind,
                        Bytes body) {
  if (kind == wire::kUpperKv) observer_->on_message(from, sender, body);
}

void CorePort::on_peer_incarnation(const std::string& session_id, Incarnation before,
                                   Incarnation now) {
  observer_->on_peer_incarnation(session_id, before, now);
}

void CorePort::on_session_state(const std::string& session_id, std::string_view from,
                                std::string_view /*to*/, const Status& /*cause*/) {
  if (from != state_name(health::State::kFailed)) return;
  // Later: the session is in the middle of its change, and rooms may send over it.
  core_.loop().post([this, session_id, alive = std::weak_ptr(running_)] {
    if (!alive.expired() && observer_ != nullptr) observer_->on_session_usable(session_id);
  });
}

void CorePort::on_shutdown(const Status& why) {
  observer_->on_shutdown(why);
}

void CorePort::on_grant_used(const memory::Grant& grant) {
  observer_->on_grant_used(grant.room, grant.attempt);
}

void CorePort::on_grant_expired(const memory::Grant& grant) {
  observer_->on_grant_expired(
      grant.room, grant.attempt,
      std::accumulate(grant.landed_bytes.begin(), grant.landed_bytes.end(), std::uint64_t{0}));
}

}  // namespace kvmend::kv
