#include "transport/local/local_hub.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/contain.h"
#include "base/log.h"
#include "base/try.h"

namespace kvmend::transport::local {
namespace {

constexpr std::size_t kMaxSaid = 1'024;

Status no_memory() {
  return {Code::kResourceExhausted, Origin::kLocal, "out of memory"};
}

// What can't be taken ends its lane, not the frames of others.
void hand_over(PullSink& sink, const RingFrame& frame) {
  if (contain("a frame in shared memory", [&] { sink.on_shared_frame(frame.view()); })) return;
  contain("closing a lane", [&] { sink.on_source_gone(no_memory()); });
}

}  // namespace

Result<std::unique_ptr<LocalHub>> LocalHub::create(const LaneContext& context, FdLoop& fds,
                                                   Duration silence) {
  KVM_ASSIGN_OR_RETURN(wire::HostIdentity identity, read_host_identity());
  // Random: it names this incarnation, and nobody meets an older one under it.
  identity.local_address =
      fmt::format("kvmend.{:016x}{:016x}", context.random.next(), context.random.next());
  KVM_ASSIGN_OR_RETURN(auto board, Board::create());
  KVM_ASSIGN_OR_RETURN(UniqueFd listener, listen_at(identity.local_address));
  auto hub = std::unique_ptr<LocalHub>(new LocalHub(
      context, fds, std::move(identity), std::move(board), std::move(listener), silence));
  const Status status = hub->watch_listener();
  if (!status.is_ok()) return std::unexpected(status);
  return hub;
}

Status LocalHub::watch_listener() {
  return listener_watch_.start(fds_, listener_.get(), [this] { accept_links(); });
}

LocalHub::LocalHub(const LaneContext& context, FdLoop& fds, wire::HostIdentity identity,
                   std::unique_ptr<Board> board, UniqueFd listener, Duration silence)
    : context_(context),
      fds_(fds),
      identity_(std::move(identity)),
      board_(std::move(board)),
      listener_(std::move(listener)),
      accept_timer_(context.loop),
      link_timer_(context.loop),
      silence_(silence),
      pools_(
          std::make_shared<const memory::PoolSegments>(memory::PoolRegistry::of_process().list())),
      workers_(context.loop, *board_,
               [this](std::vector<std::shared_ptr<CopyJob>>& jobs) { on_jobs_done(jobs); }) {
  context_.regions.set_observer(this);
  context_.grants.set_observer(this);
  context_.loop.set_poller(this);
  subscription_ = memory::PoolRegistry::of_process().subscribe(
      [this, &loop = context_.loop, alive = std::weak_ptr(alive_)] {
        loop.post([this, alive] {
          if (!alive.expired()) on_pools_changed();
        });
      });
}

LocalHub::~LocalHub() {
  memory::PoolRegistry::of_process().unsubscribe(subscription_);
  context_.regions.set_observer(nullptr);
  context_.grants.set_observer(nullptr);
  context_.loop.set_poller(nullptr);
  for (const auto& job : active_) job->stop();
}

// ------------------------------------------------------------------------------------------ lanes

std::unique_ptr<PullReceiver> LocalHub::receive_from(const wire::HostIdentity& owner,
                                                     std::uint64_t lane, PullSink& sink) {
  std::shared_ptr<SourceLink> link;
  if (const auto at = sources_.find(owner.local_address); at != sources_.end())
    link = at->second.link.lock();
  if (!link) {
    std::erase_if(sources_, [](const auto& entry) { return entry.second.link.expired(); });
    const std::string peer = fmt::format("process {}", owner.pid);
    if (sources_.size() >= config::kMaxLocalLinks) return nullptr;
    auto opened = SourceLink::open(
        fds_, identity_, *board_, owner,
        [this, address = owner.local_address](const Status& why) { on_source_dead(address, why); });
    if (!opened) {
      say_fallback(peer, opened.error());
      return nullptr;
    }
    link = std::move(*opened);
    sources_[owner.local_address] = {link, context_.loop.now()};
    arm_link_sweep();
  }
  return std::make_unique<LocalReceiver>(*this, std::move(link), lane, sink);
}

std::unique_ptr<PullSender> LocalHub::send_to(const wire::HostIdentity& receiver,
                                              std::uint64_t lane, PullSink& sink) {
  if (receiver.local_address.empty()) return nullptr;
  return std::make_unique<LocalSender>(*this, receiver.local_address, lane, sink);
}

void LocalHub::say_fallback(const std::string& peer, const Status& why) {
  if (said_.size() >= kMaxSaid || !said_.insert(peer).second) return;
  spdlog::info("{} is served by tcp, not by copies from its memory: {}", peer, why.to_string());
}

// ------------------------------------------------------------------------------------------ links

void LocalHub::accept_links() {
  while (true) {
    auto fd = accept_from(listener_.get());
    if (fd) {
      accept_link(std::move(*fd));
      continue;
    }
    const int error = errno;
    if (error != EMFILE && error != ENFILE && error != ENOBUFS && error != ENOMEM) return;
    // The connection stays in the backlog, and the socket readable: without a pause this loop would
    // do nothing but ask for it.
    if (shed_silent_link()) continue;
    accept_timer_.arm(context_.loop.now() + config::kAcceptRetry, [this] {
      if (!watch_listener().is_ok())  // no epoll entry either: the same again
        accept_timer_.arm(context_.loop.now() + config::kAcceptRetry, [this] { accept_links(); });
    });
    return listener_watch_.stop();
  }
}

void LocalHub::accept_link(UniqueFd fd) {
  if (targets_.size() >= config::kMaxLocalLinks && !shed_silent_link()) return;  // closes it
  TargetLink::Events events;
  events.on_hello = [this](TargetLink& link) {
    target_by_address_[link.address()] = &link;
    link.show(memory::PoolRegistry::of_process().list());
  };
  events.on_ready = [this](TargetLink& link) {
    if (!link.usable())
      say_fallback(fmt::format("process {}", link.pid()),
                   {Code::kUnavailable, Origin::kLocal,
                    "it may not read this process's memory, and no pool is registered"});
  };
  events.on_closed = [this](TargetLink& link) { on_target_closed(link); };
  events.on_dead = [this](TargetLink& link, const Status& why) { on_target_dead(link, why); };
  auto link = TargetLink::accept(fds_, std::move(fd), identity_.uid, *board_,
                                 context_.random.next(), std::move(events));
  if (!link) {
    std::uint64_t held_back = 0;
    if (refused_log_.allow(context_.loop.now(), held_back))
      spdlog::warn("refused a local link: {} ({} more since)", link.error().to_string(), held_back);
    return;
  }
  silent_.push_back({link->get(), context_.loop.now()});
  targets_.push_back(std::move(*link));
  arm_link_sweep();
}

// False: every link has said who it is.
bool LocalHub::shed_silent_link() {
  while (!silent_.empty()) {
    const TargetLink* oldest = silent_.front().link;
    silent_.pop_front();
    const auto at = std::ranges::find(targets_, oldest, [](const auto& t) { return t.get(); });
    if (at == targets_.end() || (*at)->ready()) continue;
    (*at)->close();
    return true;
  }
  return false;
}

void LocalHub::arm_link_sweep() {
  if (link_timer_.armed()) return;
  link_timer_.arm(context_.loop.now() + silence_ / 4, [this] {
    if (!contain("sweeping local links", [this] { sweep_links(); })) arm_link_sweep();
  });
}

// Whoever connects and says nothing holds a descriptor; whoever doesn't answer us, one of ours.
void LocalHub::sweep_links() {
  const Time before = context_.loop.now() - silence_;
  while (!silent_.empty() && silent_.front().since <= before) {
    const TargetLink* link = silent_.front().link;
    silent_.pop_front();
    const auto at = std::ranges::find(targets_, link, [](const auto& t) { return t.get(); });
    if (at != targets_.end() && !(*at)->ready()) (*at)->close();
  }
  bool waiting = !silent_.empty();
  for (const auto& [address, source] : sources_) {
    const auto link = source.link.lock();
    if (!link || !link->awaits_welcome()) continue;
    if (source.since > before) {
      waiting = true;
      continue;
    }
    say_fallback("the sender at @" + address,
                 {Code::kUnavailable, Origin::kLocal, "it doesn't answer on its local link"});
    link->give_up();
  }
  if (waiting) arm_link_sweep();
}

void LocalHub::on_pools_changed() {
  pools_ = std::make_shared<const memory::PoolSegments>(memory::PoolRegistry::of_process().list());
  for (const auto& link : targets_)
    if (!link->address().empty()) link->show(*pools_);
}

TargetLink* LocalHub::target_at(const std::string& address) const {
  const auto at = target_by_address_.find(address);
  return at == target_by_address_.end() ? nullptr : at->second;
}

void LocalHub::on_target_closed(TargetLink& target) {
  if (const auto at = target_by_address_.find(target.address());
      at != target_by_address_.end() && at->second == &target)
    target_by_address_.erase(at);
  std::erase_if(silent_, [&](const Silent& silent) { return silent.link == &target; });
  const auto at = std::ranges::find(targets_, &target, [](const auto& link) { return link.get(); });
  if (at == targets_.end()) return;
  closed_.push_back(std::move(*at));  // it is on the stack, and must not outlive our board
  context_.loop.post([this, alive = std::weak_ptr(alive_)] {
    if (!alive.expired()) closed_.clear();
  });
  targets_.erase(at);
}

void LocalHub::on_source_dead(const std::string& address, const Status& why) {
  std::vector<LocalReceiver*> users;
  for (LocalReceiver* receiver : receivers_)
    if (receiver->link().address() == address) users.push_back(receiver);
  // A sink closes its lane, which may destroy any receiver.
  for (LocalReceiver* receiver : users)
    if (receivers_.contains(receiver)) receiver->sink().on_source_gone(why);
}

void LocalHub::on_target_dead(const TargetLink& target, const Status& why) {
  std::vector<LocalSender*> users;
  for (LocalSender* sender : senders_)
    if (sender->address() == target.address()) users.push_back(sender);
  for (LocalSender* sender : users)
    if (senders_.contains(sender)) sender->sink().on_source_gone(why);
}

bool LocalHub::wait_for_reader(const TargetLink& target, ChunkId chunk) const {
  const PeerBoard* board = target.board();
  if (board == nullptr || !board->is_reading(chunk)) return true;
  // A step takes up to some hundreds of microseconds, and longer only when its thread doesn't get a
  // core. One of a peer that is stopped is left: what it reads when it goes on never counts
  // (board.h).
  const Time start = context_.loop.now();
  Time look = start + config::kWithdrawLook;
  while (board->is_reading(chunk)) {
    const Time now = context_.loop.now();
    if (now < look) continue;
    if (now - start > config::kWithdrawWait || target.process()->stopped()) return false;
    look = now + config::kWithdrawLook;
    ::sched_yield();
  }
  return true;
}

// ------------------------------------------------------------------------------------------ rings

bool LocalHub::ready() const {
  return std::ranges::any_of(receivers_, [](auto* r) { return r->link().ring().ready(); }) ||
         std::ranges::any_of(targets_, [](const auto& t) { return t->ring().ready(); });
}

// A frame's lane may close any lane, and so end receivers and senders. Links live until the turn's
// end at least. What no lane wants any more is dropped, as bytes of a closed stream would be.
void LocalHub::run() {
  std::vector<RingFrame> frames;
  std::unordered_set<LinkRing*> seen;
  for (LocalReceiver* receiver : receivers_)
    if (LinkRing& ring = receiver->link().ring(); seen.insert(&ring).second)
      while (auto frame = ring.take()) frames.push_back(*frame);
  const std::size_t of_sources = frames.size();
  for (const auto& target : targets_)
    while (auto frame = target->ring().take()) frames.push_back(*frame);
  for (std::size_t i = 0; i < frames.size(); ++i) {
    const RingFrame& frame = frames[i];
    if (i < of_sources) {
      const auto at =
          std::ranges::find_if(receivers_, [&](auto* r) { return r->lane() == frame.lane; });
      if (at != receivers_.end()) hand_over((*at)->sink(), frame);
    } else {
      const auto at =
          std::ranges::find_if(senders_, [&](auto* s) { return s->lane() == frame.lane; });
      if (at != senders_.end()) hand_over((*at)->sink(), frame);
    }
  }
}

// ------------------------------------------------------------------------------------------- jobs

void LocalHub::start(std::shared_ptr<CopyJob> job) {
  const std::size_t bytes = job->request().bytes;
  if (bytes <= config::kInlinePullBytes && bytes <= inline_left_) {
    inline_left_ -= bytes;
    if (!inline_reset_scheduled_) {
      context_.loop.at_end_of_turn([this, alive = std::weak_ptr(alive_)] {
        if (alive.expired()) return;
        inline_reset_scheduled_ = false;
        inline_left_ = config::kInlinePullBudget;
      });
      inline_reset_scheduled_ = true;
    }
    workers_.run_inline(*job);
    answer(*job);
    return;
  }
  active_.insert(job);
  workers_.submit(std::move(job));
}

void LocalHub::on_jobs_done(std::vector<std::shared_ptr<CopyJob>>& jobs) {
  for (const std::shared_ptr<CopyJob>& job : jobs) {
    active_.erase(job);
    LocalReceiver* receiver = job->receiver;
    if (contain("answering a pull", [&] { answer(*job); })) continue;
    if (receiver != nullptr && receivers_.contains(receiver))
      contain("closing a lane", [&] { receiver->sink().on_source_gone(no_memory()); });
  }
}

void LocalHub::answer(CopyJob& job) {
  if (job.receiver != nullptr) job.receiver->answer(job);
}

std::size_t LocalHub::stop(const LocalReceiver* receiver, ChunkId chunk) {
  for (const auto& job : active_) {
    if (job->receiver != receiver || job->request().chunk != chunk) continue;
    job->receiver = nullptr;
    job->stop();
    return 1;
  }
  return 0;
}

void LocalHub::remove(LocalReceiver* receiver) {
  receivers_.erase(receiver);
  for (const auto& job : active_) {
    if (job->receiver != receiver) continue;
    job->receiver = nullptr;
    job->stop();
  }
}

void LocalHub::on_region_ending(const memory::Region& region) {
  for (const auto& job : active_)
    if (job->writes_into(region.base, region.length)) job->stop();
  for (LocalSender* sender : senders_) sender->on_region_ending(region);
}

void LocalHub::on_grant_ending(GrantId grant) {
  for (const auto& job : active_)
    if (job->request().grant == grant) job->stop();
  for (LocalSender* sender : senders_) sender->on_grant_ending(grant);
}

}  // namespace kvmend::transport::local
