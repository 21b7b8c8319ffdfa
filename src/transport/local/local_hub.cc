#include "transport/local/local_hub.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/try.h"

namespace kvmend::transport::local {
namespace {

constexpr std::size_t kMaxSaid = 1'024;

}  // namespace

Result<std::unique_ptr<LocalHub>> LocalHub::create(const LaneContext& context, FdLoop& fds) {
  KVM_ASSIGN_OR_RETURN(wire::HostIdentity identity, read_host_identity());
  // Random: it names this incarnation, and nobody meets an older one under it.
  identity.local_address =
      fmt::format("kvmend.{:016x}{:016x}", context.random.next(), context.random.next());
  KVM_ASSIGN_OR_RETURN(auto board, Board::create());
  KVM_ASSIGN_OR_RETURN(UniqueFd listener, listen_at(identity.local_address));
  auto hub = std::unique_ptr<LocalHub>(
      new LocalHub(context, fds, std::move(identity), std::move(board), std::move(listener)));
  const Status status = hub->listener_watch_.start(fds, hub->listener_.get(),
                                                   [raw = hub.get()] { raw->accept_links(); });
  if (!status.is_ok()) return std::unexpected(status);
  return hub;
}

LocalHub::LocalHub(const LaneContext& context, FdLoop& fds, wire::HostIdentity identity,
                   std::unique_ptr<Board> board, UniqueFd listener)
    : context_(context),
      fds_(fds),
      identity_(std::move(identity)),
      board_(std::move(board)),
      listener_(std::move(listener)),
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

std::unique_ptr<PullReceiver> LocalHub::receive_from(const wire::HostIdentity& initiator,
                                                     std::uint64_t lane, PullSink& sink) {
  std::shared_ptr<SourceLink> link;
  if (const auto at = sources_.find(initiator.local_address); at != sources_.end())
    link = at->second.lock();
  if (!link) {
    std::erase_if(sources_, [](const auto& entry) { return entry.second.expired(); });
    const std::string peer = fmt::format("process {}", initiator.pid);
    if (sources_.size() >= config::kMaxLocalLinks) return nullptr;
    auto opened = SourceLink::open(fds_, identity_, *board_, initiator,
                                   [this, address = initiator.local_address](const Status& why) {
                                     on_source_dead(address, why);
                                   });
    if (!opened) {
      say_fallback(peer, opened.error());
      return nullptr;
    }
    link = std::move(*opened);
    sources_[initiator.local_address] = link;
  }
  return std::make_unique<LocalReceiver>(*this, std::move(link), lane, sink);
}

std::unique_ptr<PullSender> LocalHub::send_to(const wire::HostIdentity& target, std::uint64_t lane,
                                              PullSink& sink) {
  if (target.local_address.empty()) return nullptr;
  return std::make_unique<LocalSender>(*this, target.local_address, lane, sink);
}

void LocalHub::say_fallback(const std::string& peer, const Status& why) {
  if (said_.size() >= kMaxSaid || !said_.insert(peer).second) return;
  spdlog::info("{} is served by tcp, not by copies from its memory: {}", peer, why.to_string());
}

// ------------------------------------------------------------------------------------------ links

void LocalHub::accept_links() {
  while (auto fd = accept_from(listener_.get())) {
    if (targets_.size() >= config::kMaxLocalLinks) continue;  // closes it
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
    auto link = TargetLink::accept(fds_, std::move(*fd), identity_.uid, *board_,
                                   context_.random.next(), std::move(events));
    if (link) {
      targets_.push_back(std::move(*link));
    } else {
      std::uint64_t held_back = 0;
      if (refused_log_.allow(context_.loop.now(), held_back))
        spdlog::warn("refused a local link: {} ({} more since)", link.error().to_string(),
                     held_back);
    }
  }
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
  const auto at = std::ranges::find(targets_, &target, [](const auto& link) { return link.get(); });
  if (at == targets_.end()) return;
  context_.loop.post([gone = std::move(*at)] {});  // it is on the stack
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
  // A step takes some tens of microseconds, and longer only when its thread doesn't get a core. One
  // of a peer that is stopped is left: what it reads when it goes on never counts (board.h).
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
      if (at != receivers_.end()) (*at)->sink().on_shared_frame(frame.view());
    } else {
      const auto at =
          std::ranges::find_if(senders_, [&](auto* s) { return s->lane() == frame.lane; });
      if (at != senders_.end()) (*at)->sink().on_shared_frame(frame.view());
    }
  }
}

// ------------------------------------------------------------------------------------------- jobs

void LocalHub::start(std::shared_ptr<CopyJob> job) {
  const std::size_t bytes = job->request().bytes;
  if (bytes <= config::kInlinePullBytes && bytes <= inline_left_) {
    inline_left_ -= bytes;
    if (!inline_reset_scheduled_) {
      inline_reset_scheduled_ = true;
      context_.loop.at_end_of_turn([this, alive = std::weak_ptr(alive_)] {
        if (alive.expired()) return;
        inline_reset_scheduled_ = false;
        inline_left_ = config::kInlinePullBudget;
      });
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
    answer(*job);
  }
}

void LocalHub::answer(CopyJob& job) {
  if (job.receiver != nullptr) job.receiver->answer(job);
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
}

void LocalHub::on_grant_ending(GrantId grant) {
  for (const auto& job : active_)
    if (job->request().grant == grant) job->stop();
}

}  // namespace kvmend::transport::local
