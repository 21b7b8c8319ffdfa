#include "engine/facade.h"

#include <fmt/format.h>

#include <algorithm>
#include <future>
#include <utility>

#include "base/config.h"
#include "base/contain.h"
#include "base/try.h"
#include "engine/prepared_layouts.h"
#include "engine/transfer_handle.h"
#include "env/run_on_loop.h"
#include "wire/control.h"

namespace kvmend::engine {
namespace {

Status down_status() {
  return {Code::kShuttingDown, Origin::kLocal, "this engine is shut down"};
}

// A result that a loop task fills and a caller waits for; the caller may give up first. Left
// unfilled (the loop doesn't run any more), it says that the engine is shut down.
template <class T>
class Answer {
 public:
  Answer() = default;
  Answer(const Answer&) = delete;
  Answer& operator=(const Answer&) = delete;
  Answer(Answer&&) = delete;
  Answer& operator=(Answer&&) = delete;
  ~Answer() {
    if (filled_) return;
    if constexpr (std::is_same_v<T, Status>) {
      fill(down_status());
    } else {
      fill(std::unexpected(down_status()));
    }
  }
  void fill(T value) {
    filled_ = true;
    promise_.set_value(std::move(value));
  }
  std::future<T> future() { return promise_.get_future(); }

 private:
  std::promise<T> promise_;
  bool filled_ = false;
};

Status check_options(const TransferOptions& options) {
  if (options.deadline.count() < 0)
    return {Code::kInvalidArgument, Origin::kCaller,
            fmt::format("a deadline of {} ns is in the past", options.deadline.count())};
  if (!options.notify) return Status::ok();
  const auto too_long = [](const char* what, std::size_t bytes, std::size_t most) {
    return Status(
        Code::kInvalidArgument, Origin::kCaller,
        fmt::format("a notification's {} of {} bytes; at most {} are possible", what, bytes, most));
  };
  if (options.notify->name.size() > wire::kMaxNotifyNameBytes)
    return too_long("name", options.notify->name.size(), wire::kMaxNotifyNameBytes);
  if (options.notify->message.size() > wire::kMaxNotifyBytes)
    return too_long("message", options.notify->message.size(), wire::kMaxNotifyBytes);
  return Status::ok();
}

/// Pieces may span regions that follow each other.
bool all_registered(const memory::RegionTable& regions, const session::TransferState& transfer) {
  return std::ranges::all_of(transfer.pieces, [&](const transport::Piece& piece) {
    const std::byte* at = piece.local;
    const std::byte* const end = at + piece.length;
    while (at < end) {
      const memory::Region* region = regions.find_containing(at, 1);
      if (region == nullptr) return false;
      at = region->base + region->length;
    }
    return true;
  });
}

}  // namespace

EngineFacade::EngineFacade(std::unique_ptr<EngineCore> core, std::shared_ptr<void> world,
                           std::move_only_function<void()> stop)
    : world_(std::move(world)),
      core_(std::move(core)),
      core_ref_(std::make_shared<EngineCore*>(core_.get())),
      stop_(std::move(stop)),
      session_id_(core_->session_id()),
      default_deadline_(core_->options().default_deadline) {
  core_->set_region_watcher([this] {
    forget_local_regions();
    if (on_registered_) on_registered_(core_->regions().total_bytes());
  });
}

EngineFacade::~EngineFacade() {
  shutdown(core_->options().shutdown_grace);
  stop_();  // another thread may have shut it down: the core is taken apart in this one
}

bool EngineFacade::run_on_loop(env::Task work) const {
  return !down_.load() && env::run_and_wait(core_->loop(), std::move(work));
}

Result<Address> EngineFacade::parse_peer(std::string_view session_id) const {
  auto address = parse_address(session_id);
  if (address && address->port == 0)
    return fail(Code::kInvalidArgument, Origin::kCaller,
                fmt::format("session id '{}' has port 0", session_id));
  return address;
}

// --------------------------------------------------------------------------------------- memory

Status EngineFacade::register_memory(void* base, std::uint64_t length, MemoryKind kind,
                                     Access access) {
  const MemoryRange range{base, length};
  return register_batch(std::span(&range, 1), kind, access);
}

Status EngineFacade::register_batch(std::span<const MemoryRange> ranges, MemoryKind kind,
                                    Access access) {
  Status status = down_status();
  run_on_loop([&] {
    status = Status::ok();
    for (std::size_t i = 0; i < ranges.size() && status.is_ok(); ++i) {
      const auto ref = core_->register_memory(ranges[i].base, ranges[i].length, kind, access);
      if (ref) continue;
      status = ref.error();
      while (i-- > 0) static_cast<void>(core_->unregister_memory(ranges[i].base));
      break;
    }
  });
  return status;
}

Status EngineFacade::unregister_memory(void* base) {
  Status status = down_status();
  run_on_loop([&] { status = core_->unregister_memory(base); });
  return status;
}

void EngineFacade::forget_local_regions() {
  const MutexLock lock(mutex_);
  ++local_changes_;
  local_.reset();
}

std::shared_ptr<const LocalRegions> EngineFacade::local_regions() {
  std::uint64_t changes = 0;
  {
    const MutexLock lock(mutex_);
    if (local_) return local_;
    changes = local_changes_;
  }
  std::shared_ptr<const LocalRegions> fresh;
  run_on_loop([&] {
    const memory::RegionTable& regions = core_->regions();
    fresh = std::make_shared<LocalRegions>(regions.list(), regions.removals());
  });
  if (!fresh) return std::make_shared<LocalRegions>(std::vector<memory::Region>{}, 0);
  const MutexLock lock(mutex_);
  if (changes == local_changes_) local_ = fresh;  // else it may be out of date already
  return fresh;
}

// ------------------------------------------------------------------------------------- transfers

Result<TransferHandle> EngineFacade::submit(std::string_view session_id, Opcode opcode,
                                            std::span<const Slice> slices,
                                            TransferOptions options) {
  if (down_.load()) return std::unexpected(down_status());
  auto state = std::make_shared<session::TransferState>();
  KVM_ASSIGN_OR_RETURN(state->peer, parse_peer(session_id));
  KVM_RETURN_IF_ERROR(check_options(options));
  if (slices.empty() && !options.notify)
    return fail(Code::kInvalidArgument, Origin::kCaller, "a transfer without a slice");
  if (slices.size() > config::kMaxSlicesPerTransfer)
    return fail(Code::kResourceExhausted, Origin::kCaller,
                fmt::format("{} slices in one transfer; at most {} are possible", slices.size(),
                            config::kMaxSlicesPerTransfer));
  const std::shared_ptr<const LocalRegions> local = local_regions();
  std::size_t hint = 0;
  state->pieces.reserve(slices.size());
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const Slice& slice = slices[i];
    if (slice.length == 0)
      return fail(Code::kInvalidArgument, Origin::kCaller, fmt::format("slice {} has length 0", i));
    const auto address = reinterpret_cast<std::uintptr_t>(slice.local);
    if (!local->contains(address, slice.length, hint))
      return fail(Code::kNotRegistered, Origin::kCaller,
                  fmt::format("slice {}: {} bytes at {:#x} aren't registered here", i, slice.length,
                              address));
    auto* begin = static_cast<std::byte*>(slice.local);
    if (!state->pieces.empty()) {
      transport::Piece& last = state->pieces.back();
      if (last.local + last.length == begin && last.offset + last.length == slice.remote) {
        last.length += slice.length;
        continue;
      }
    }
    state->pieces.push_back({begin, RegionRef{}, slice.remote, slice.length});
  }
  return launch(std::move(state), local->removals(), opcode, std::move(options));
}

TransferHandle EngineFacade::launch(std::shared_ptr<session::TransferState> state,
                                    std::uint64_t removals, Opcode opcode,
                                    TransferOptions options) {
  state->id = TransferId(next_transfer_.fetch_add(1, std::memory_order_relaxed));
  state->opcode = opcode;
  state->grant = memory::kStandingGrant;
  state->target = options.target;
  state->raw = true;
  state->checksum = options.checksum;
  state->urgent = options.urgent;
  state->notify = std::move(options.notify);
  state->submitted = core_->loop().now();
  state->deadline = saturating_add(
      state->submitted, options.deadline.count() > 0 ? options.deadline : default_deadline_);
  auto result = std::make_shared<TransferResult>();
  state->on_done = [result, user = std::move(options.on_done)](const Status& status) mutable {
    result->set(status);
    if (user) user(status);
  };
  auto handle = std::make_shared<LoopTransfer>(core_ref_, state, result, world_, core_->loop());
  env::Task begin = [core = std::weak_ptr(core_ref_), state, removals,
                     unrun = env::IfUnrun([state] {
                       std::exchange(state->on_done, nullptr)(down_status());
                     })]() mutable {
    const auto alive = core.lock();
    if (!alive) return;
    unrun.dismiss();
    const memory::RegionTable& regions = (*alive)->regions();
    if (regions.removals() != removals && !all_registered(regions, *state)) {
      std::exchange(state->on_done,
                    nullptr)({Code::kNotRegistered, Origin::kCaller,
                              "a region of the transfer was deregistered while it was submitted"});
      return;
    }
    EngineCore& engine = **alive;
    if (contain("submitting a transfer", [&] { engine.submit(state); })) return;
    const Status why(Code::kResourceExhausted, Origin::kLocal, "out of memory");
    contain("ending a transfer", [&] { engine.cancel(state, why); });
    state->done = true;
    if (state->on_done) std::exchange(state->on_done, nullptr)(why);
  };
  env::EventLoop& loop = core_->loop();
  if (options.linger > std::chrono::nanoseconds::zero() &&
      loop.drive(
          begin, [&] { return result->is_set(); },
          saturating_add(state->submitted, options.linger)))
    return handle;
  loop.post(std::move(begin));
  return handle;
}

Result<PreparedHandle> EngineFacade::prepare(std::string_view session_id, PageLayout local,
                                             PageLayout remote) {
  KVM_ASSIGN_OR_RETURN(const Address peer, parse_peer(session_id));
  KVM_ASSIGN_OR_RETURN(auto prepared,
                       PreparedLayouts::create(peer, std::move(local), std::move(remote)));
  KVM_RETURN_IF_ERROR(prepared->check_registered(*local_regions()));
  return prepared;
}

Result<TransferHandle> EngineFacade::submit_pages(const PreparedHandle& prepared, Opcode opcode,
                                                  std::span<const std::uint32_t> local_pages,
                                                  std::span<const std::uint32_t> remote_pages,
                                                  TransferOptions options) {
  if (down_.load()) return std::unexpected(down_status());
  const auto* layouts = dynamic_cast<const PreparedLayouts*>(prepared.get());
  if (layouts == nullptr)
    return fail(Code::kInvalidArgument, Origin::kCaller, "these layouts weren't prepared");
  KVM_RETURN_IF_ERROR(check_options(options));
  const std::shared_ptr<const LocalRegions> local = local_regions();
  KVM_RETURN_IF_ERROR(layouts->check_registered(*local));
  auto state = std::make_shared<session::TransferState>();
  state->peer = layouts->peer();
  KVM_RETURN_IF_ERROR(layouts->append_pieces(local_pages, remote_pages, state->pieces));
  return launch(std::move(state), local->removals(), opcode, std::move(options));
}

Status EngineFacade::transfer(std::string_view session_id, Opcode opcode,
                              std::span<const Slice> slices, TransferOptions options) {
  options.linger = std::chrono::hours(24);
  auto handle = submit(session_id, opcode, slices, std::move(options));
  if (!handle) return handle.error();
  // The deadline ends it; the wait itself needs none.
  while (true) {
    if (auto status = (*handle)->wait(std::chrono::hours(24))) return *status;
  }
}

Status EngineFacade::notify(std::string_view session_id, const Notification& notification,
                            std::chrono::nanoseconds timeout) {
  if (timeout.count() <= 0)
    return {Code::kInvalidArgument, Origin::kCaller,
            fmt::format("a timeout of {} ns isn't positive", timeout.count())};
  TransferOptions options;
  options.deadline = timeout;
  options.notify = notification;
  return transfer(session_id, Opcode::kWrite, {}, std::move(options));
}

// -------------------------------------------------------------------------------------- sessions

std::future<Result<SessionInfo>> EngineFacade::start_open_session(
    std::string_view session_id, std::chrono::nanoseconds timeout) {
  auto answer = std::make_shared<Answer<Result<SessionInfo>>>();
  std::future<Result<SessionInfo>> future = answer->future();
  const auto peer = parse_peer(session_id);
  if (!peer) {
    answer->fill(std::unexpected(peer.error()));
    return future;
  }
  run_on_loop([&] {
    if (const Status admitted = core_->admits(); !admitted.is_ok()) {
      answer->fill(std::unexpected(admitted));
      return;
    }
    const auto session = core_->sessions().find_or_create(*peer);
    if (!session) {
      answer->fill(std::unexpected(session.error()));
      return;
    }
    session::Session* opened = *session;
    opened->open(saturating_add(core_->loop().now(), timeout),
                 [answer, opened](const Status& status) {
                   if (status.is_ok()) {
                     answer->fill(opened->info());
                   } else {
                     answer->fill(std::unexpected(status));
                   }
                 });
  });
  return future;
}

Result<SessionInfo> EngineFacade::open_session(std::string_view session_id,
                                               std::chrono::nanoseconds timeout) {
  return start_open_session(session_id, timeout).get();
}

std::future<Status> EngineFacade::start_probe(std::string_view session_id,
                                              std::chrono::nanoseconds timeout) {
  auto answer = std::make_shared<Answer<Status>>();
  std::future<Status> future = answer->future();
  const auto peer = parse_peer(session_id);
  if (!peer) {
    answer->fill(peer.error());
    return future;
  }
  run_on_loop([&] {
    if (const Status admitted = core_->admits(); !admitted.is_ok()) return answer->fill(admitted);
    core_->sessions().probe(
        *peer, saturating_add(core_->loop().now(), timeout),
        [answer](const session::ProbeResult& result) { answer->fill(result.status); });
  });
  return future;
}

Status EngineFacade::probe(std::string_view session_id, std::chrono::nanoseconds timeout) {
  return start_probe(session_id, timeout).get();
}

Result<std::vector<std::pair<std::uint64_t, std::uint64_t>>> EngineFacade::peer_regions(
    std::string_view session_id, std::chrono::nanoseconds timeout) {
  const auto opened = open_session(session_id, timeout);
  if (!opened) return std::unexpected(opened.error());
  std::vector<std::pair<std::uint64_t, std::uint64_t>> regions;
  const std::string id = parse_peer(session_id)->to_string();
  const bool up = run_on_loop([&] {
    const session::Session* session = core_->sessions().find(id);
    if (session == nullptr || !session->remote_regions()) return;
    const auto by_base = session->remote_regions()->list();
    std::vector<wire::RegionEntry> entries(by_base.begin(), by_base.end());
    std::ranges::sort(entries, {}, [](const wire::RegionEntry& e) { return e.ref.slot; });
    for (const auto& region : entries) regions.emplace_back(region.base, region.length);
  });
  if (!up) return std::unexpected(down_status());
  return regions;
}

std::vector<Notification> EngineFacade::take_notifications() {
  std::vector<Notification> taken;
  run_on_loop([&] { taken = core_->take_notifications(); });
  return taken;
}

std::vector<SessionInfo> EngineFacade::sessions() const {
  std::vector<SessionInfo> infos;
  run_on_loop(
      [&] { core_->sessions().for_each([&](session::Session& s) { infos.push_back(s.info()); }); });
  return infos;
}

EngineStats EngineFacade::stats() const {
  EngineStats stats;
  run_on_loop([&] { stats = core_->stats(); });
  return stats;
}

void EngineFacade::shutdown(std::chrono::nanoseconds grace) {
  // One who waits already waits no longer than we would.
  if (!down_.load()) core_->loop().post([core = core_.get(), grace] { core->hurry(grace); });
  const MutexLock lock(shutdown_mutex_);
  if (down_.load()) return;
  if (stop_watcher_) std::exchange(stop_watcher_, nullptr)();
  auto drained = std::make_shared<std::promise<void>>();
  std::future<void> future = drained->get_future();
  core_->loop().post([core = core_.get(), grace, drained] {
    core->shutdown(grace, [drained] { drained->set_value(); });
  });
  drained.reset();
  future.wait();  // also over when the loop has ended already and dropped the promise
  down_.store(true);
  stop_();
}

}  // namespace kvmend::engine
