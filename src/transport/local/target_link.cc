#include "transport/local/target_link.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/config.h"
#include "base/contain.h"
#include "base/try.h"

namespace kvmend::transport::local {
namespace {

// Shown and not answered yet: their messages fit the socket's buffer.
constexpr std::size_t kMaxUnanswered = 16;

}  // namespace

Result<std::unique_ptr<TargetLink>> TargetLink::accept(FdLoop& fds, UniqueFd fd, uid_t uid,
                                                       Board& board, std::uint64_t nonce,
                                                       Events events) {
  KVM_ASSIGN_OR_RETURN(const Credentials there, credentials_of(fd.get()));
  if (there.uid != uid)
    return fail(Code::kPermissionDenied, Origin::kPeer,
                fmt::format("user {} asks for our memory", there.uid));
  auto link = std::unique_ptr<TargetLink>(
      new TargetLink(std::move(fd), there.pid, board, nonce, std::move(events)));
  link->fds_ = &fds;
  const Status status =
      link->link_watch_.start(fds, link->fd_.get(), [raw = link.get()] { raw->on_readable(); });
  if (!status.is_ok()) return std::unexpected(status);
  return link;
}

TargetLink::TargetLink(UniqueFd fd, pid_t pid, Board& own, std::uint64_t nonce, Events events)
    : fd_(std::move(fd)),
      pid_(pid),
      own_(own),
      ring_(own),
      events_(std::move(events)),
      nonce_(std::make_unique<std::uint64_t>(nonce)) {}

void TargetLink::on_readable() {
  while (!closed_) {
    Received received = receive_message(fd_.get());
    if (received.kind == Received::Kind::kNothing) return;
    bool good = received.kind == Received::Kind::kMessage;
    if (good && !contain("a local link's message", [&] { good = on_message(received); }))
      good = false;
    if (!good) return close();
  }
}

void TargetLink::close() {
  if (std::exchange(closed_, true)) return;
  ready_ = false;
  ring_.disconnect();
  link_watch_.stop();
  process_watch_.stop();
  fd_.reset();
  events_.on_closed(*this);
}

bool TargetLink::on_message(Received& received) {
  const LinkMessage& message = received.message;
  switch (message.kind) {
    case LinkKind::kHello:
      return on_hello(received);
    case LinkKind::kReady:
      if (address_.empty() || ready_) return false;
      ready_ = true;
      foreign_ = message.a == 1;
      show_next();
      if (asked_.empty()) events_.on_ready(*this);
      return true;
    case LinkKind::kMapped: {
      if (unanswered_ == 0) return false;
      --unanswered_;
      const auto pool = std::ranges::find_if(
          pools_, [&](const auto& p) { return static_cast<std::uint32_t>(p->id()) == message.id; });
      if (message.a == 1 && pool != pools_.end())
        shared_.push_back({(*pool)->base(), (*pool)->bytes(), message.id});
      show_next();
      if (unanswered_ == 0) events_.on_ready(*this);
      return true;
    }
    case LinkKind::kBell:
      return true;  // the loop is awake now and looks at the ring
    default:
      return false;
  }
}

bool TargetLink::on_hello(Received& received) {
  if (!address_.empty() || !received.fd.is_open()) return false;
  auto process = PeerProcess::open(pid_, 0);
  auto board = PeerBoard::map(std::move(received.fd));
  address_ = received.message.get_address();
  if (!process || !board || address_.empty()) return false;
  process_.emplace(std::move(*process));
  board_ = std::move(*board);
  const Status watched = process_watch_.start(*fds_, process_->fd(), [this] {
    process_watch_.stop();
    ready_ = false;
    events_.on_dead(*this, Status(Code::kConnectionReset, Origin::kPeer,
                                  fmt::format("process {} has died", pid_)));
  });
  if (!watched.is_ok()) return false;
  LinkMessage welcome;
  welcome.kind = LinkKind::kWelcome;
  welcome.a = reinterpret_cast<std::uintptr_t>(nonce_.get());
  welcome.b = *nonce_;
  welcome.id = ring_.number();
  ring_.connect(*board_, received.message.id);
  if (!send_message(fd_.get(), welcome, own_.fd())) return false;
  events_.on_hello(*this);
  return true;
}

void TargetLink::show(const std::vector<std::shared_ptr<memory::PoolSegment>>& pools) {
  const auto there = [&pools](std::uint64_t id) {
    return std::ranges::any_of(pools, [id](const auto& pool) { return pool->id() == id; });
  };
  for (auto at = asked_.begin(); at != asked_.end();) {
    if (there(*at)) {
      ++at;
      continue;
    }
    LinkMessage retire;
    retire.kind = LinkKind::kRetire;
    retire.id = static_cast<std::uint32_t>(*at);
    std::erase_if(shared_, [&](const SharedSegment& s) { return s.id == retire.id; });
    static_cast<void>(send_message(fd_.get(), retire));  // else it keeps the mapping until we close
    at = asked_.erase(at);
  }
  pools_ = pools;
  if (ready_) show_next();
}

void TargetLink::show_next() {
  for (const auto& pool : pools_) {
    if (unanswered_ >= kMaxUnanswered || asked_.size() >= config::kMaxLocalSegments) return;
    if (std::ranges::find(asked_, pool->id()) != asked_.end()) continue;
    LinkMessage segment;
    segment.kind = LinkKind::kSegment;
    segment.id = static_cast<std::uint32_t>(pool->id());
    segment.a = pool->bytes();
    if (!send_message(fd_.get(), segment, pool->fd())) return;
    asked_.push_back(pool->id());
    ++unanswered_;
  }
}

const SharedSegment* TargetLink::find(const std::byte* at, std::uint64_t length,
                                      std::size_t& hint) const {
  const auto inside = [&](const SharedSegment& segment) {
    return at >= segment.base && length <= segment.bytes &&
           static_cast<std::uint64_t>(at - segment.base) <= segment.bytes - length;
  };
  if (hint < shared_.size() && inside(shared_[hint])) return &shared_[hint];
  for (std::size_t i = 0; i < shared_.size(); ++i) {
    if (!inside(shared_[i])) continue;
    hint = i;
    return &shared_[i];
  }
  return nullptr;
}

}  // namespace kvmend::transport::local
