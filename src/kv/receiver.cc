#include <fmt/format.h>

#include <utility>

#include "kv/handles.h"
#include "kv/layout.h"
#include "kvmend/kv.h"

namespace kvmend {

using kv::Core;

namespace {

std::vector<KvSource> sources_of(std::vector<std::string> sessions) {
  std::vector<KvSource> out;
  out.reserve(sessions.size());
  for (std::string& session : sessions) out.push_back({.session = std::move(session)});
  return out;
}

}  // namespace

KvReceiver::KvReceiver(KvManager& manager, std::vector<std::string> prefill_sessions, RoomId room)
    : KvReceiver(manager, std::span<const KvSource>(sources_of(std::move(prefill_sessions))),
                 room) {}

KvReceiver::KvReceiver(KvManager& manager, std::span<const KvSource> sources, RoomId room)
    : link_(manager.link_), handle_(kv::make_handle(*link_, room)) {
  if (!kv::check_handle(*link_, *handle_, KvRole::kDecode)) return;
  link_->post(handle_, [handle = handle_, given = std::vector(sources.begin(), sources.end())](
                           Core& core) { core.decode()->attach(handle, given); });
}

KvReceiver::~KvReceiver() {
  clear();
}

void KvReceiver::init() {
  link_->post(handle_, [handle = handle_](Core& core) { core.decode()->init(*handle); });
}

Status KvReceiver::send_metadata(std::span<const std::uint32_t> pages,
                                 std::optional<std::uint32_t> aux_index,
                                 const KvStateIndices& states, std::uint64_t prefix_tokens,
                                 std::span<const std::uint32_t> device_pages) {
  if (poll() == KvStatus::kFailed) return failure();
  auto gathered = kv::gather_pages(link_->layout(), pages, aux_index, states, true, device_pages);
  if (!gathered) return std::move(gathered).error();
  const KvLayout& layout = link_->layout();
  if (const std::uint64_t virtual_page = std::uint64_t{layout.page_tokens} * layout.rank.dcp_size;
      layout.rank.dcp_size > 1 && prefix_tokens % virtual_page != 0)
    return kv::misuse(
        fmt::format("room {}: prefix_tokens {} isn't a multiple of {} ({} x dcp_size)",
                    room().value, prefix_tokens, virtual_page, layout.page_tokens));
  const MutexLock lock(handle_->promise_mutex);
  if (handle_->promise.num_pages)
    return kv::misuse(fmt::format("room {}: the pages were announced before", room().value));
  handle_->promise.num_pages = static_cast<std::uint32_t>(pages.size());
  link_->post(handle_, [handle = handle_, announced = std::move(*gathered),
                        prefix_tokens](Core& core) mutable {
    core.decode()->set_pages(*handle, std::move(announced), prefix_tokens);
  });
  return {};
}

KvStatus KvReceiver::poll() const {
  return handle_->status();
}

KvStatus KvReceiver::wait(std::chrono::nanoseconds timeout) const {
  return handle_->wait_for(KvStatus::kSuccess, timeout);
}

KvStatus KvReceiver::wait_for(KvStatus status, std::chrono::nanoseconds timeout) const {
  return handle_->wait_for(status, timeout);
}

void KvReceiver::abort(std::string_view reason) {
  if (is_terminal(poll())) return;
  link_->post(handle_, [handle = handle_, why = kv::aborted(reason)](Core& core) {
    core.decode()->abort(*handle, why);
  });
}

bool KvReceiver::abort_acknowledged() const {
  return handle_->abort_acknowledged();
}

bool KvReceiver::pages_released() const {
  return handle_->pages_released();
}

std::vector<std::string> KvReceiver::aux_fields() const {
  return handle_->aux_fields();
}

Status KvReceiver::failure() const {
  return handle_->failure();
}

void KvReceiver::clear() {
  if (is_terminal(poll())) return;
  link_->post(handle_,
              [handle = handle_](Core& core) { core.decode()->abort(*handle, kv::cleared()); });
}

KvRoomMetrics KvReceiver::metrics() const {
  return handle_->metrics(link_->now());
}

RoomId KvReceiver::room() const {
  return handle_->room();
}

}  // namespace kvmend
