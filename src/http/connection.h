// Private to src/http: one accepted connection of a server. Server's thread only.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>

#include "http/beast.h"
#include "http/counters.h"
#include "http/router.h"
#include "http/server.h"

namespace kvmend::http {

class Connection;
using ConnectionList = std::list<std::shared_ptr<Connection>>;

/// What the connections of one server share. `open` is ordered by the time at which each began to
/// wait for its next request, longest first.
struct ConnectionPool {
  const ServerOptions& options;
  const Router& router;
  Counters& counters;
  ConnectionList open;
  bool stopping = false;
  std::function<void()> on_last_closed;  ///< while stopping
};

/// waiting (no byte of a request) -> reading -> answering -> waiting ... -> draining -> gone.
/// Every operation has a timeout; the list keeps the connection alive, `close` takes it off.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(ConnectionPool& pool, Tcp::socket socket);

  void start(ConnectionList::iterator self);
  /// Whether no answer is under way, so that closing loses nothing but an unfinished request.
  [[nodiscard]] bool is_idle() const { return !answering_; }
  /// Closes the socket at once and leaves the pool; pending operations end silently. Idempotent.
  void close();

 private:
  void wait_for_request();
  void read_header();
  void on_header(ErrorCode error);
  void read_body();
  void on_request(ErrorCode error);
  void refuse(ErrorCode error);
  void send(Response answer, bool keep_alive, unsigned version, bool head_only);
  void on_sent(ErrorCode error, bool keep_alive, bool drain);
  void drain();
  void drain_more();
  template <class Step>
  void go_on(Step&& step);
  void end(ErrorCode error);
  [[nodiscard]] Result<Request> take_request();

  using Parser = beast::http::request_parser<beast::http::string_body>;
  using Message = beast::http::response<beast::http::string_body>;

  ConnectionPool& pool_;
  ConnectionList::iterator self_;
  beast::tcp_stream stream_;
  beast::flat_buffer buffer_;
  std::optional<Parser> parser_;
  std::optional<Message> message_;
  std::optional<beast::http::response<beast::http::empty_body>> bodiless_;
  std::string peer_;
  std::size_t drained_ = 0;
  bool answering_ = false;
  bool refused_ = false;
  bool closed_ = false;
};

}  // namespace kvmend::http
