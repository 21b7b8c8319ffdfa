#include "transport/local/source_link.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/config.h"
#include "base/contain.h"
#include "base/log.h"
#include "base/try.h"

namespace kvmend::transport::local {
namespace {

Status unavailable(std::string detail) {
  return {Code::kUnavailable, Origin::kLocal, std::move(detail)};
}

}  // namespace

Result<std::shared_ptr<SourceLink>> SourceLink::open(FdLoop& fds, const wire::HostIdentity& self,
                                                     Board& board, const wire::HostIdentity& sender,
                                                     Gone gone) {
  if (sender.boot_id != self.boot_id) return std::unexpected(unavailable("another host"));
  if (sender.uid != self.uid)
    return std::unexpected(unavailable(fmt::format("it runs as user {}", sender.uid)));
  if (sender.local_address.empty()) return std::unexpected(unavailable("it offers no address"));
  KVM_ASSIGN_OR_RETURN(UniqueFd fd, connect_to(sender.local_address));
  KVM_ASSIGN_OR_RETURN(const Credentials there, credentials_of(fd.get()));
  if (there.uid != self.uid || static_cast<std::uint32_t>(there.pid) != sender.pid)
    return std::unexpected(unavailable(
        fmt::format("process {} of user {} listens at the address of process {} (another pid "
                    "namespace?)",
                    there.pid, there.uid, sender.pid)));
  KVM_ASSIGN_OR_RETURN(PeerProcess process, PeerProcess::open(there.pid, sender.pid_start));
  auto link = std::shared_ptr<SourceLink>(new SourceLink(
      std::move(process), std::move(fd), sender.local_address, board, std::move(gone)));
  const Status status = link->start(fds, self, board);
  if (!status.is_ok()) return std::unexpected(status);
  return link;
}

SourceLink::SourceLink(PeerProcess process, UniqueFd fd, std::string address, Board& board,
                       Gone gone)
    : pending_(new SourceMemory{std::move(process), nullptr}),
      address_(std::move(address)),
      gone_(std::move(gone)),
      ring_(board),
      fd_(std::move(fd)) {}

Status SourceLink::start(FdLoop& fds, const wire::HostIdentity& self, const Board& board) {
  Status status = link_watch_.start(fds, fd_.get(), [this] { on_readable(); });
  if (!status.is_ok()) return status;
  const int pidfd = pending_->process.fd();
  status = process_watch_.start(fds, pidfd, [this, pid = pending_->process.pid()] {
    process_watch_.stop();
    give_up();
    const Gone gone = gone_;  // it may destroy this link
    gone(Status(Code::kConnectionReset, Origin::kPeer, fmt::format("process {} has died", pid)));
  });
  if (!status.is_ok()) return status;
  LinkMessage hello;
  hello.kind = LinkKind::kHello;
  hello.id = ring_.number();
  hello.set_address(self.local_address);
  if (!send_message(fd_.get(), hello, board.fd())) return unavailable("its link takes no hello");
  return Status::ok();
}

void SourceLink::break_off() {
  link_watch_.stop();
  ring_.disconnect();
  if (memory_) memory_->link_open.store(false);
  memory_.reset();
}

void SourceLink::give_up() {
  break_off();
  fd_.reset();
}

void SourceLink::on_readable() {
  while (fd_.is_open()) {
    Received received = receive_message(fd_.get());
    if (received.kind == Received::Kind::kNothing) return;
    bool good = received.kind == Received::Kind::kMessage;
    if (good && !contain("a local link's message", [&] { good = on_message(received); }))
      good = false;
    if (!good) return give_up();
  }
}

bool SourceLink::on_message(Received& received) {
  switch (received.message.kind) {
    case LinkKind::kWelcome:
      return welcome(received);
    case LinkKind::kSegment:
      return map_segment(received);
    case LinkKind::kRetire: {
      auto fewer = std::make_shared<SegmentMap>(*segments_);
      fewer->erase(received.message.id);
      segments_ = std::move(fewer);
      return true;
    }
    case LinkKind::kBell:
      return true;  // the loop is awake now and looks at the ring
    default:
      return false;
  }
}

bool SourceLink::welcome(Received& received) {
  if (!pending_ || !received.fd.is_open()) return false;
  auto board = PeerBoard::map(std::move(received.fd));
  if (!board) {
    spdlog::warn("a local peer's board is of no use: {}", board.error().to_string());
    return false;
  }
  pending_->board = std::move(*board);
  // The proof of access: read what only the sender and we know where it says that it lies.
  std::uint64_t nonce = 0;
  const iovec to{&nonce, sizeof nonce};
  const iovec from{reinterpret_cast<void*>(received.message.a), sizeof nonce};  // NOLINT
  pending_->foreign = pending_->process.read(std::span(&to, 1), std::span(&from, 1)) ==
                          static_cast<ssize_t>(sizeof nonce) &&
                      nonce == received.message.b;
  memory_ = std::move(pending_);
  ring_.connect(*memory_->board, received.message.id);
  LinkMessage ready;
  ready.kind = LinkKind::kReady;
  ready.a = memory_->foreign ? 1 : 0;
  return send_message(fd_.get(), ready);
}

bool SourceLink::map_segment(Received& received) {
  if (!memory_ || !received.fd.is_open() || segments_->size() >= config::kMaxLocalSegments)
    return false;
  auto segment = MappedSegment::map(std::move(received.fd), received.message.a);
  LinkMessage mapped;
  mapped.kind = LinkKind::kMapped;
  mapped.id = received.message.id;
  mapped.a = segment ? 1 : 0;
  if (segment) {
    auto more = std::make_shared<SegmentMap>(*segments_);
    (*more)[received.message.id] = std::move(*segment);
    segments_ = std::move(more);
  } else {
    spdlog::warn("a local peer's pool isn't mapped: {}", segment.error().to_string());
  }
  return send_message(fd_.get(), mapped);
}

}  // namespace kvmend::transport::local
