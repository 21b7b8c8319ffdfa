#include "env/sim/network.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>

#include "base/check.h"
#include "env/errors.h"
#include "env/sim/stream.h"

namespace kvmend::env::sim {
namespace {

EndpointOptions endpoint_options(const SimOptions& world, const StreamOptions& options) {
  const auto pick = [](int asked, std::size_t otherwise) {
    return asked > 0 ? static_cast<std::size_t>(asked) : otherwise;
  };
  return {.send_buffer = pick(options.send_buffer_bytes, world.send_buffer_bytes),
          .receive_buffer = pick(options.receive_buffer_bytes, world.receive_buffer_bytes),
          .user_timeout = options.user_timeout};
}

}  // namespace

bool SimNetwork::ByNumber::operator()(const SimStream* a, const SimStream* b) const {
  return a->number() < b->number();
}

bool SimNetwork::ByNumber::operator()(const SimListener* a, const SimListener* b) const {
  return a->number() < b->number();
}

Result<std::unique_ptr<Listener>> SimNetwork::listen(const Address& at,
                                                     const StreamOptions& options,
                                                     AcceptHandler* handler) {
  KVM_CHECK(handler != nullptr);
  const auto failed = [&](int error) {
    return std::unexpected(
        status_of_listen_errno(error, fmt::format("listen at {}", at.to_string())));
  };
  if (shut_down_) return fail(Code::kShuttingDown, Origin::kLocal, "the process is dead");
  const bool ours =
      at.host == host_.ip() || at.host == "0.0.0.0" || at.host == "::" || at.is_loopback();
  if (!ours) return failed(EADDRNOTAVAIL);
  if (out_of_descriptors()) return failed(EMFILE);
  Address real = at;
  ListeningPort* port = host_.open_port(real.port, endpoint_options(core_.options, options));
  if (port == nullptr) return failed(EADDRINUSE);
  auto listener = std::make_unique<SimListener>(*this, port, std::move(real), handler);
  listeners_.insert(listener.get());
  return listener;
}

Result<std::unique_ptr<Stream>> SimNetwork::connect(const Address& to, const StreamOptions& options,
                                                    StreamHandler* handler) {
  KVM_CHECK(handler != nullptr);
  const auto failed = [&](int error) {
    return std::unexpected(status_of_errno(error, fmt::format("connect to {}", to.to_string())));
  };
  if (shut_down_) return fail(Code::kShuttingDown, Origin::kLocal, "the process is dead");
  if (out_of_descriptors()) return failed(EMFILE);
  auto endpoint = host_.connect(to, endpoint_options(core_.options, options));
  if (endpoint == nullptr) return failed(EADDRNOTAVAIL);
  return std::make_unique<SimStream>(*this, std::move(endpoint), handler);
}

void SimNetwork::hold_accepts(bool on) {
  accepts_held_ = on;
  for (SimListener* listener : listeners_) listener->stir();
}

void SimNetwork::set_inaccessible(const void* begin, std::size_t length) {
  const auto address = reinterpret_cast<std::uintptr_t>(begin);
  inaccessible_.emplace_back(address, address + length);
}

std::size_t SimNetwork::accessible_bytes(std::span<const iovec> parts) const {
  std::size_t total = 0;
  for (const iovec& part : parts) {
    const auto begin = reinterpret_cast<std::uintptr_t>(part.iov_base);
    std::uintptr_t end = begin + part.iov_len;
    for (const auto& [from, to] : inaccessible_)
      if (begin < to && from < end) end = std::max(begin, from);
    total += end - begin;
    if (end != begin + part.iov_len) break;
  }
  return total;
}

void SimNetwork::shut_down(bool reset) {
  shut_down_ = true;
  for (SimListener* listener : listeners_) listener->cut_off();
  for (SimStream* stream : streams_) stream->cut_off(reset);
}

}  // namespace kvmend::env::sim
