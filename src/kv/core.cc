#include "kv/core.h"

#include <utility>

#include "base/address.h"
#include "base/try.h"

namespace kvmend::kv {

Core::Core(std::unique_ptr<EnginePort> port, const KvLayout& layout, const KvOptions& options,
           Counters& counters)
    : port_(std::move(port)), around_{*port_, layout, described_, options, counters} {}

Core::~Core() {
  close({Code::kShuttingDown, Origin::kLocal, "the KV manager has gone"});
}

Result<std::unique_ptr<Core>> Core::open(std::unique_ptr<EnginePort> port, KvRole role,
                                         const KvLayout& layout, const KvOptions& options,
                                         Counters& counters) {
  if (Status admitted = port->admits(); !admitted.is_ok())
    return std::unexpected(std::move(admitted));
  std::unique_ptr<Core> core(new Core(std::move(port), layout, options, counters));
  if (Status status = core->register_pools(); !status.is_ok()) {
    core->unregister_pools();
    return std::unexpected(std::move(status));
  }
  core->start(role);
  return core;
}

Status Core::register_pools() {
  std::vector<std::vector<BufferPlace>> places;
  for (const KvComponent& component : around_.layout.components) {
    std::vector<BufferPlace>& row = places.emplace_back();
    for (const KvBuffer& buffer : component.buffers) {
      if (buffer.item_len == 0) {  // elided
        row.emplace_back();
        continue;
      }
      const std::uint64_t length = component.items * buffer.item_len;
      if (const memory::Region* region = port_->find_region(buffer.base, length)) {
        row.push_back({region->ref, static_cast<std::uint64_t>(
                                        static_cast<std::byte*>(buffer.base) - region->base)});
        continue;
      }
      auto ref = port_->register_memory(buffer.base, length, component.kind);
      if (!ref) return std::move(ref).error();
      registered_.push_back(buffer.base);
      row.push_back({*ref, 0});
    }
  }
  described_ = describe(around_.layout, places);
  return {};
}

void Core::unregister_pools() {
  for (void* base : std::exchange(registered_, {})) {
    const Status status = port_->unregister_memory(base);
    if (!status.is_ok()) spdlog::warn("kv: {}", status.to_string());
  }
}

void Core::start(KvRole role) {
  if (role == KvRole::kPrefill) {
    auto prefill = std::make_unique<PrefillRole>(around_);
    prefill_ = prefill.get();
    role_ = std::move(prefill);
  } else {
    const auto seed = static_cast<std::uint64_t>(around_.now().time_since_epoch().count()) >> 10;
    auto decode = std::make_unique<DecodeRole>(around_, seed);
    decode_ = decode.get();
    role_ = std::move(decode);
  }
  port_->set_observer(this);
}

void Core::close(const Status& why) {
  if (!role_) return;
  closed_ = why;
  role_->close(why);
  unregister_pools();
  role_->finish_close();
  port_->set_observer(nullptr);
  role_.reset();
  prefill_ = nullptr;
  decode_ = nullptr;
}

void Core::on_message(const std::string& from, Incarnation sender, Bytes body) {
  auto message = wire::parse_kv(body);
  auto address = parse_address(from);
  if (!message || !address) {
    ++around_.counters.malformed_messages;
    std::uint64_t held_back = 0;
    if (malformed_log_.allow(around_.now(), held_back))
      spdlog::warn("kv: message from \"{}\" dropped: {} ({} more since)", from,
                   (!message ? message.error() : address.error()).to_string(), held_back);
    return;
  }
  role_->on_message({from, std::move(*address), sender}, std::move(*message));
}

// A session that begins anew has seen nobody before, but the role may know the process that
// answered in the last one's time.
void Core::on_peer_incarnation(const std::string& session_id, Incarnation before, Incarnation now) {
  const Incarnation last = before.is_set() ? before : role_->known_incarnation(session_id);
  if (last.is_set() && last != now) role_->on_peer_incarnation(session_id, now);
}

void Core::on_peer_died(const std::string& session_id, Incarnation incarnation) {
  role_->on_peer_died(session_id, incarnation);
}

void Core::on_grant_used(RoomId room, std::uint32_t attempt) {
  role_->on_grant_used(room, attempt);
}

void Core::on_grant_expired(RoomId room, std::uint32_t attempt, std::uint64_t landed) {
  role_->on_grant_expired(room, attempt, landed);
}

}  // namespace kvmend::kv
