#include "http/server.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <system_error>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/contain.h"
#include "http/connection.h"

namespace kvmend::http {
namespace {

std::unexpected<Status> cannot_listen(const Address& address, const ErrorCode& error) {
  return fail(
      Code::kUnavailable, Origin::kLocal,
      fmt::format("HTTP server can't listen on {}: {}", address.to_string(), error.message()),
      error.value());
}

}  // namespace

class Server::Impl {
 public:
  Impl(ServerOptions options, Router router)
      : options_(std::move(options)),
        router_(std::move(router)),
        pool_{.options = options_, .router = router_, .counters = counters_, .open = {}} {}

  Result<void> open();
  void stop();
  [[nodiscard]] const Address& address() const { return address_; }
  [[nodiscard]] ServerStats stats() const;

 private:
  void run();
  void accept_next();
  void accept_later();
  void on_accept(ErrorCode error, Tcp::socket socket);
  void shed_one();
  void tick();
  void begin_stop();

  ServerOptions options_;
  Router router_;
  Counters counters_;
  Address address_;
  asio::io_context io_{1};
  Tcp::acceptor acceptor_{io_};
  asio::steady_timer accept_timer_{io_};
  asio::steady_timer tick_timer_{io_};
  asio::steady_timer stop_timer_{io_};
  bool accepting_ = false;
  bool ticking_ = false;
  ConnectionPool pool_;  // after io_: its sockets go first
  std::thread thread_;
};

Result<void> Server::Impl::open() {
  const Address& wanted = options_.listen;
  ErrorCode error;
  const auto host = asio::ip::make_address(wanted.host, error);
  if (error) {
    return fail(Code::kInvalidArgument, Origin::kCaller,
                fmt::format("HTTP server: '{}' isn't a numeric IP address", wanted.host));
  }
  if (!host.is_loopback() && !options_.allow_remote) {
    return fail(Code::kPermissionDenied, Origin::kCaller,
                fmt::format("HTTP server: {} isn't a loopback address; listening there without "
                            "authentication must be allowed with --insecure",
                            wanted.to_string()));
  }
  const Tcp::endpoint endpoint(host, wanted.port);
  (void)acceptor_.open(endpoint.protocol(), error);
  if (!error) (void)acceptor_.set_option(asio::socket_base::reuse_address(true), error);
  if (!error) (void)acceptor_.bind(endpoint, error);
  if (!error) (void)acceptor_.listen(asio::socket_base::max_listen_connections, error);
  if (error) return cannot_listen(wanted, error);
  address_ = {.host = wanted.host, .port = acceptor_.local_endpoint(error).port()};
  if (error) return cannot_listen(wanted, error);
  accept_next();
  if (options_.on_tick) tick();
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& failed) {
    return fail(Code::kResourceExhausted, Origin::kLocal, "starting the HTTP server's thread",
                failed.code().value());
  }
  return {};
}

// An exception here can only be out of memory: it ends what was being done, not the thread.
// Connections see to themselves; what takes new ones and the ticks must go on.
void Server::Impl::run() {
  while (!contain("the HTTP server's loop", [this] { io_.run(); })) {
    if (pool_.stopping) continue;
    contain("the HTTP server's loop", [this] {
      if (!accepting_) accept_later();
      if (options_.on_tick && !ticking_) tick();
    });
  }
}

void Server::Impl::accept_next() {
  acceptor_.async_accept(
      [this](ErrorCode error, Tcp::socket socket) { on_accept(error, std::move(socket)); });
  accepting_ = true;
}

void Server::Impl::accept_later() {
  accept_timer_.expires_after(limits::kAcceptBackoff);
  accept_timer_.async_wait([this](ErrorCode cancelled) {
    accepting_ = false;
    if (!cancelled) accept_next();
  });
  accepting_ = true;
}

void Server::Impl::on_accept(ErrorCode error, Tcp::socket socket) {
  accepting_ = false;
  if (pool_.stopping || !acceptor_.is_open()) return;
  if (error) {
    // Out of descriptors or buffers, most likely: make room, and don't spin.
    spdlog::debug("http: accept on {}: {}", address_.to_string(), error.message());
    if (!pool_.open.empty()) shed_one();
    return accept_later();
  }
  ++counters_.accepted;
  if (pool_.open.size() >= options_.max_connections) shed_one();
  pool_.open.push_back(std::make_shared<Connection>(pool_, std::move(socket)));
  ++counters_.open;
  pool_.open.back()->start(std::prev(pool_.open.end()));
  accept_next();
}

void Server::Impl::shed_one() {
  auto victim = std::ranges::find_if(pool_.open, [](const auto& c) { return c->is_idle(); });
  if (victim == pool_.open.end()) victim = pool_.open.begin();
  ++counters_.shed;
  (*victim)->close();
}

void Server::Impl::tick() {
  tick_timer_.expires_after(options_.tick_interval);
  tick_timer_.async_wait([this](ErrorCode cancelled) {
    ticking_ = false;
    if (cancelled || pool_.stopping) return;
    contain("the HTTP server's upkeep", options_.on_tick);
    tick();
  });
  ticking_ = true;
}

void Server::Impl::begin_stop() {
  pool_.stopping = true;
  ErrorCode ignored;
  (void)acceptor_.close(ignored);
  accept_timer_.cancel();
  tick_timer_.cancel();
  const ConnectionList open = pool_.open;  // close() edits the list
  pool_.on_last_closed = [] {};
  for (const auto& connection : open)
    if (connection->is_idle()) connection->close();
  if (pool_.open.empty()) return;
  stop_timer_.expires_after(options_.stop_grace);
  pool_.on_last_closed = [this] { stop_timer_.cancel(); };
  stop_timer_.async_wait([this](ErrorCode) {
    const ConnectionList late = pool_.open;
    for (const auto& connection : late) connection->close();
  });
}

void Server::Impl::stop() {
  if (!thread_.joinable()) return;
  KVM_CHECK(thread_.get_id() != std::this_thread::get_id(), "http: stop() out of a handler");
  asio::post(io_, [this] { begin_stop(); });
  thread_.join();
}

ServerStats Server::Impl::stats() const {
  return {.accepted = counters_.accepted,
          .requests = counters_.requests,
          .malformed = counters_.malformed,
          .timed_out = counters_.timed_out,
          .shed = counters_.shed,
          .open = counters_.open};
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() {
  stop();
}

Result<std::unique_ptr<Server>> Server::start(ServerOptions options, Router router) {
  auto impl = std::make_unique<Impl>(std::move(options), std::move(router));
  if (auto opened = impl->open(); !opened) return std::unexpected(opened.error());
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

const Address& Server::address() const {
  return impl_->address();
}
std::string Server::url() const {
  return "http://" + impl_->address().to_string();
}
ServerStats Server::stats() const {
  return impl_->stats();
}
void Server::stop() {
  impl_->stop();
}

}  // namespace kvmend::http
