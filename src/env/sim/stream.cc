#include "env/sim/stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "env/errors.h"

namespace kvmend::env::sim {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kMaxIov = 1'024;
constexpr int kMaxAcceptsPerTurn = 64;
constexpr Duration kPauseWhenExhausted = 100ms;

std::size_t total_bytes(std::span<const iovec> parts) {
  std::size_t total = 0;
  for (const iovec& part : parts) total += part.iov_len;
  return total;
}

}  // namespace

SimStream::SimStream(SimNetwork& network, std::shared_ptr<Endpoint> endpoint,
                     StreamHandler* handler)
    : network_(network),
      endpoint_(std::move(endpoint)),
      handler_(handler),
      connecting_(endpoint_->state() == Endpoint::State::kSynSent),
      source_(network.loop().add_source(this)),
      number_(source_) {
  endpoint_->set_observer([this] { stir(); });
  network_.add(this);
}

SimStream::~SimStream() {
  network_.remove(this);
  network_.loop().remove_source(source_);
  if (!cut_off_) endpoint_->close(reset_on_close_);
}

void SimStream::cut_off(bool reset) {
  cut_off_ = true;
  broken_ = true;
  network_.loop().remove_source(source_);
  endpoint_->close(reset || reset_on_close_);
}

// ---------------------------------------------------------------------------------------- transfer

IoResult SimStream::readv(std::span<const iovec> into) {
  if (broken_) return broken(ENOTCONN);
  if (connecting_) return {.kind = IoResult::Kind::kAgain};
  if (eof_) return {.kind = IoResult::Kind::kEof};
  into = into.first(std::min(into.size(), kMaxIov));
  const std::size_t wanted = std::min(total_bytes(into), endpoint_->readable_bytes());
  if (wanted == 0) {
    if (total_bytes(into) == 0) return {.kind = IoResult::Kind::kAgain};
    if (endpoint_->readable_bytes() == 0 && endpoint_->ended()) {
      eof_ = true;
      return {.kind = IoResult::Kind::kEof};
    }
    if (endpoint_->error() != 0) return broken(endpoint_->error());
    return {.kind = IoResult::Kind::kAgain};
  }
  const std::size_t accessible = network_.accessible_bytes(into);
  if (accessible == 0) return broken(EFAULT);
  const std::size_t moved = network_.core().random.cut(
      std::min(wanted, accessible), network_.core().options.short_io_probability);
  std::size_t done = 0;
  for (const iovec& part : into) {
    const std::size_t size = std::min(part.iov_len, moved - done);
    const Bytes bytes = endpoint_->peek(done, size);
    std::ranges::copy(bytes, static_cast<std::byte*>(part.iov_base));
    done += size;
    if (done == moved) break;
  }
  endpoint_->consume(moved);
  read_something_ = true;
  network_.core().note("read", source_, moved);
  return {.kind = IoResult::Kind::kOk, .bytes = moved};
}

IoResult SimStream::writev(std::span<const iovec> from) {
  if (broken_) return broken(ENOTCONN);
  if (connecting_) return {.kind = IoResult::Kind::kAgain};
  if (endpoint_->error() != 0) return broken(endpoint_->error());
  if (endpoint_->state() == Endpoint::State::kClosed) return broken(EPIPE);
  from = from.first(std::min(from.size(), kMaxIov));
  const std::size_t wanted = std::min(total_bytes(from), endpoint_->writable_bytes());
  if (wanted == 0) return {.kind = IoResult::Kind::kAgain};
  const std::size_t accessible = network_.accessible_bytes(from);
  if (accessible == 0) return broken(EFAULT);
  const std::size_t moved = network_.core().random.cut(
      std::min(wanted, accessible), network_.core().options.short_io_probability);
  std::size_t done = 0;
  for (const iovec& part : from) {
    const std::size_t size = std::min(part.iov_len, moved - done);
    if (size > 0) endpoint_->write({static_cast<const std::byte*>(part.iov_base), size});
    done += size;
    if (done == moved) break;
  }
  network_.core().note("write", source_, moved);
  endpoint_->push();
  return {.kind = IoResult::Kind::kOk, .bytes = moved};
}

IoResult SimStream::broken(int sys_errno) {
  if (sys_errno == EFAULT) return {.kind = IoResult::Kind::kFault, .sys_errno = EFAULT};
  broken_ = true;
  return {.kind = IoResult::Kind::kError, .sys_errno = sys_errno};
}

std::size_t SimStream::unacknowledged_bytes() const {
  return endpoint_->unacknowledged_bytes();
}

// --------------------------------------------------------------------------------------- readiness

void SimStream::want_read(bool on) {
  want_read_ = on;
  stir();
}

void SimStream::want_write(bool on) {
  want_write_ = on;
  stir();
}

void SimStream::set_handler(StreamHandler* handler) {
  handler_ = handler;
  stir();
}

bool SimStream::can_read() const {
  return want_read_ && !eof_ &&
         (endpoint_->readable_bytes() > 0 || endpoint_->ended() || endpoint_->error() != 0);
}

bool SimStream::is_ready() const {
  if (handler_ == nullptr || broken_) return false;
  if (endpoint_->error() != 0) return true;
  if (connecting_) return endpoint_->state() != Endpoint::State::kSynSent;
  return can_read() || (want_write_ && endpoint_->writable_bytes() > 0);
}

void SimStream::on_io() {
  if (connecting_) {
    if (endpoint_->error() != 0) return break_off(endpoint_->error(), "connect");
    connecting_ = false;
    return handler_->on_connected();
  }
  SimLoop& loop = network_.loop();
  const std::uint64_t source = source_;
  read_something_ = false;
  if (can_read()) {
    handler_->on_readable();
    if (!loop.has_source(source) || broken_ || handler_ == nullptr) return;
  }
  // Bytes that arrived before a reset are delivered first.
  if (endpoint_->error() != 0) {
    if (!read_something_) break_off(endpoint_->error(), "connection");
    return;
  }
  if (want_write_ && endpoint_->writable_bytes() > 0) handler_->on_writable();
}

void SimStream::break_off(int sys_errno, const char* doing) {
  broken_ = true;
  handler_->on_stream_error(status_of_errno(
      sys_errno, fmt::format("{} to {} from {}", doing, endpoint_->remote().to_string(),
                             endpoint_->local().to_string())));
}

// ---------------------------------------------------------------------------------------- listener

SimListener::SimListener(SimNetwork& network, ListeningPort* port, Address address,
                         AcceptHandler* handler)
    : network_(network),
      port_(port),
      address_(std::move(address)),
      handler_(handler),
      retry_(network.loop()),
      source_(network.loop().add_source(this)) {
  port_->observer = [this] { stir(); };
}

SimListener::~SimListener() {
  cut_off();
  network_.remove(this);
}

void SimListener::cut_off() {
  if (std::exchange(port_, nullptr) == nullptr) return;
  network_.loop().remove_source(source_);
  network_.host().close_port(address_.port);
}

bool SimListener::is_ready() const {
  return port_ != nullptr && !port_->queue.empty() && !network_.accepts_held() && !retry_.armed();
}

void SimListener::on_io() {
  SimLoop& loop = network_.loop();
  const std::uint64_t source = source_;
  for (int budget = kMaxAcceptsPerTurn; budget > 0 && is_ready(); --budget) {
    if (network_.out_of_descriptors())
      return retry_.arm(loop.now() + kPauseWhenExhausted, [this] { stir(); });
    std::shared_ptr<Endpoint> endpoint = std::move(port_->queue.front());
    port_->queue.pop_front();
    network_.core().note("accept", source_, endpoint->remote().port);
    handler_->on_accept(std::make_unique<SimStream>(network_, std::move(endpoint), nullptr));
    if (!loop.has_source(source)) return;  // the handler closed this listener
  }
}

}  // namespace kvmend::env::sim
