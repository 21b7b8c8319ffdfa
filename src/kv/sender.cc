#include <fmt/format.h>

#include <utility>

#include "kv/gate.h"
#include "kv/handles.h"
#include "kv/layout.h"
#include "kvmend/kv.h"

namespace kvmend {

using kv::Core;
using kv::RoomHandle;

KvSender::KvSender(KvManager& manager, RoomId room, std::string_view decode_session)
    : link_(manager.link_), handle_(kv::make_handle(*link_, room)) {
  if (!kv::check_handle(*link_, *handle_, KvRole::kPrefill)) return;
  std::string only;
  if (!decode_session.empty()) {
    auto address = parse_address(decode_session);
    if (!address) {
      handle_->fail(std::move(address).error(), Time{});
      return;
    }
    only = address->to_string();
  }
  link_->post(handle_, [handle = handle_, only = std::move(only)](Core& core) mutable {
    core.prefill()->attach(handle, std::move(only));
  });
}

KvSender::~KvSender() {
  clear();
}

Status KvSender::init(std::uint32_t num_pages, std::optional<std::uint32_t> aux_index) {
  if (poll() == KvStatus::kFailed) return failure();
  // Checks the row as well as any other index.
  if (auto checked = kv::gather_pages(link_->layout(), {}, aux_index, {}, false); !checked)
    return std::move(checked).error();
  const MutexLock lock(handle_->promise_mutex);
  if (handle_->promise.num_pages)
    return kv::misuse(fmt::format("room {}: init was called before", room().value));
  handle_->promise.num_pages = num_pages;
  link_->post(handle_, [handle = handle_, num_pages, aux_index](Core& core) {
    core.prefill()->init(*handle, num_pages, aux_index);
  });
  return {};
}

Status KvSender::send(std::span<const std::uint32_t> pages, const KvStateIndices& states,
                      const KvGate* ready) {
  if (poll() == KvStatus::kFailed) return failure();
  auto gathered = kv::gather_pages(link_->layout(), pages, std::nullopt, states, false);
  if (!gathered) return std::move(gathered).error();
  kv::SourceChunk chunk{.pages = {pages.begin(), pages.end()}};
  if (!pages.empty()) gathered->erase(gathered->begin());  // the kv pages stand first
  chunk.extra = std::move(*gathered);

  const MutexLock lock(handle_->promise_mutex);  // keeps the order of chunks
  RoomHandle::Promise& promise = handle_->promise;
  if (!promise.num_pages) return kv::misuse(fmt::format("room {}: send before init", room().value));
  if (promise.complete)
    return kv::misuse(
        fmt::format("room {}: all {} pages have been sent", room().value, *promise.num_pages));
  if (pages.size() > *promise.num_pages - promise.sent_pages)
    return kv::misuse(fmt::format("room {}: {} pages after {} of {}", room().value, pages.size(),
                                  promise.sent_pages, *promise.num_pages));
  chunk.first = promise.sent_pages;
  chunk.last = promise.sent_pages + pages.size() == *promise.num_pages;
  if (!chunk.last && !chunk.extra.empty())
    return kv::misuse(fmt::format("room {}: state pages come with the last chunk", room().value));
  promise.sent_pages += static_cast<std::uint32_t>(pages.size());
  promise.complete = chunk.last;
  if (ready != nullptr && !ready->is_open()) {
    chunk.gate = ready->state_;
    // Posted after the chunk itself when the gate opens at this very moment: the room then finds
    // it open on its own.
    ready->state_->when_open([link = std::weak_ptr(link_), handle = std::weak_ptr(handle_)] {
      const auto to = link.lock();
      const auto room = handle.lock();
      if (to && room) to->post(room, [room](Core& core) { core.prefill()->on_gate_open(*room); });
    });
  }
  link_->post(handle_, [handle = handle_, chunk = std::move(chunk)](Core& core) mutable {
    core.prefill()->send(*handle, std::move(chunk));
  });
  return {};
}

std::uint64_t KvSender::prefix_tokens() const {
  return handle_->prefix_tokens();
}

std::string KvSender::decode_session() const {
  return handle_->announced_by();
}

KvStatus KvSender::poll() const {
  return handle_->status();
}

KvStatus KvSender::wait(std::chrono::nanoseconds timeout) const {
  return handle_->wait_for(KvStatus::kSuccess, timeout);
}

KvStatus KvSender::wait_for(KvStatus status, std::chrono::nanoseconds timeout) const {
  return handle_->wait_for(status, timeout);
}

void KvSender::abort(std::string_view reason) {
  if (is_terminal(poll())) return;
  link_->post(handle_, [handle = handle_, why = kv::aborted(reason)](Core& core) {
    core.prefill()->abort(*handle, why);
  });
}

bool KvSender::pages_released() const {
  return handle_->pages_released();
}

Status KvSender::failure() const {
  return handle_->failure();
}

void KvSender::clear() {
  if (is_terminal(poll())) return;
  link_->post(handle_,
              [handle = handle_](Core& core) { core.prefill()->abort(*handle, kv::cleared()); });
}

KvRoomMetrics KvSender::metrics() const {
  return handle_->metrics(link_->now());
}

RoomId KvSender::room() const {
  return handle_->room();
}

}  // namespace kvmend
