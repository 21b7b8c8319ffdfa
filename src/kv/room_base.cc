#include "kv/room_base.h"

#include <fmt/format.h>

#include <algorithm>

namespace kvmend::kv {

void RoomBase::arm() {
  if (ended()) return;
  const Time next = std::min(deadline_, next_due());
  if (timer_.armed() && timer_.when() == next) return;
  timer_.arm(next, [this] { on_timer(); });
}

void RoomBase::on_timer() {
  const auto self = shared_from_this();
  const Time now = around_.now();
  if (now >= deadline_)
    return fail(
        {Code::kDeadlineExceeded, Origin::kPeer,
         fmt::format("room {} ran out of time: {}", handle_->room().value, where_it_stands())});
  on_due(now);
  arm();
}

}  // namespace kvmend::kv
