#include "kv/link.h"

#include <fmt/format.h>

#include <utility>

#include "base/config.h"
#include "base/contain.h"
#include "base/try.h"
#include "env/run_on_loop.h"

namespace kvmend::kv {
namespace {

Status gone() {
  return {Code::kShuttingDown, Origin::kLocal, "the KV manager has been torn down"};
}

Status no_memory() {
  return {Code::kResourceExhausted, Origin::kLocal, "out of memory"};
}

Status check_options(const KvOptions& options) {
  using std::chrono::duration_cast;
  using std::chrono::milliseconds;
  if (options.room_deadline < milliseconds{1} || options.room_deadline > config::kMaxRoomDeadline)
    return {Code::kInvalidArgument, Origin::kCaller,
            fmt::format("room_deadline {} ms (1 ms to 7 days)",
                        duration_cast<milliseconds>(options.room_deadline).count())};
  if (options.announced_ttl < milliseconds{1})
    return {Code::kInvalidArgument, Origin::kCaller,
            fmt::format("announced_ttl {} ms (at least 1 ms)",
                        duration_cast<milliseconds>(options.announced_ttl).count())};
  for (const double share : {options.parked_share_per_session, options.parked_share})
    if (!(share >= 0 && share <= 1))
      return {Code::kInvalidArgument, Origin::kCaller,
              fmt::format("a parked share of {} (0 to 1)", share)};
  if (!(options.quarantine_share >= 0 && options.quarantine_share <= 1))
    return {Code::kInvalidArgument, Origin::kCaller,
            fmt::format("a quarantine share of {} (0 to 1)", options.quarantine_share)};
  if (options.quarantine_unproven_after < milliseconds{0} ||
      options.quarantine_unproven_after > config::kMaxRoomDeadline)
    return {Code::kInvalidArgument, Origin::kCaller,
            fmt::format("quarantine_unproven_after {} ms (0 to 7 days)",
                        duration_cast<milliseconds>(options.quarantine_unproven_after).count())};
  return {};
}

}  // namespace

Result<std::shared_ptr<Link>> Link::open(std::unique_ptr<EnginePort> port, KvRole role,
                                         KvLayout layout, KvOptions options) {
  KVM_RETURN_IF_ERROR(check_options(options));
  KVM_RETURN_IF_ERROR(check_layout(layout));
  env::EventLoop& loop = port->loop();
  std::shared_ptr<Link> link(new Link(role, std::move(layout), options));
  Status failed = gone();
  env::run_and_wait(loop, [&] {
    auto core = Core::open(std::move(port), role, link->layout_, link->options_, link->counters_);
    if (core) {
      link->core_ = std::move(*core);
      failed = Status::ok();
    } else {
      failed = std::move(core).error();
    }
  });
  if (!failed.is_ok()) return std::unexpected(std::move(failed));
  const MutexLock lock(link->mutex_);
  link->loop_ = &loop;
  return link;
}

void Link::close() {
  env::EventLoop* loop = nullptr;
  {
    const MutexLock lock(mutex_);
    loop = std::exchange(loop_, nullptr);
  }
  if (loop == nullptr) return;
  const auto work = [this] {
    core_->close(gone());
    core_.reset();
  };
  // A loop that has stopped runs nothing concurrently: then this thread may do it.
  if (!env::run_and_wait(*loop, work)) work();
}

void Link::post(std::shared_ptr<RoomHandle> handle, std::move_only_function<void(Core&)> work) {
  {
    const MutexLock lock(mutex_);
    if (loop_ != nullptr) {
      loop_->post([self = shared_from_this(), handle,
                   unrun = env::IfUnrun([handle] { handle->fail(gone(), Time{}); }),
                   work = std::move(work)]() mutable {
        unrun.dismiss();
        if (!self->core_) {
          handle->fail(gone(), Time{});
        } else if (const Status& closed = self->core_->closed(); !closed.is_ok()) {
          handle->fail(closed, Time{});
        } else {
          const bool done = contain("a call of the KV manager", [&] { work(*self->core_); });
          if (!done) handle->fail(no_memory(), Time{});
        }
      });
      return;
    }
  }
  handle->fail(gone(), Time{});
}

std::optional<Time> Link::now() const {
  const MutexLock lock(mutex_);
  if (loop_ == nullptr) return std::nullopt;
  return loop_->now();
}

}  // namespace kvmend::kv
