#include "http/connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/contain.h"
#include "http/limits.h"
#include "http/url.h"

namespace kvmend::http {
namespace {

namespace bhttp = beast::http;

Method to_method(bhttp::verb verb) {
  switch (verb) {
    case bhttp::verb::get:
      return Method::kGet;
    case bhttp::verb::head:
      return Method::kHead;
    case bhttp::verb::put:
      return Method::kPut;
    case bhttp::verb::post:
      return Method::kPost;
    case bhttp::verb::delete_:
      return Method::kDelete;
    default:
      return Method::kOther;
  }
}

std::string describe(const Tcp::socket& socket) {
  ErrorCode error;
  const auto endpoint = socket.remote_endpoint(error);
  if (error) return "?";
  return Address{.host = endpoint.address().to_string(), .port = endpoint.port()}.to_string();
}

bool wants_continue(const bhttp::fields& fields) {
  return beast::iequals(fields[bhttp::field::expect], "100-continue");
}

template <class Message>
void fill_head(Message& message, const Response& answer, bool keep_alive) {
  message.set(bhttp::field::server, "kvmend/" KVMEND_VERSION);
  if (!answer.content_type.empty()) message.set(bhttp::field::content_type, answer.content_type);
  for (const Field& field : answer.headers) message.set(field.name, field.value);
  message.keep_alive(keep_alive);
  message.content_length(answer.body.size());
}

}  // namespace

Connection::Connection(ConnectionPool& pool, Tcp::socket socket)
    : pool_(pool),
      stream_(std::move(socket)),
      buffer_(limits::kReadBufferBytes),
      peer_(describe(stream_.socket())) {
  ErrorCode ignored;
  (void)stream_.socket().set_option(Tcp::no_delay(true), ignored);
}

void Connection::start(ConnectionList::iterator self) {
  self_ = self;
  wait_for_request();
}

void Connection::close() {
  if (std::exchange(closed_, true)) return;
  --pool_.counters.open;  // before the peer can see it
  stream_.close();
  const auto alive = *self_;
  pool_.open.erase(self_);
  if (pool_.stopping && pool_.open.empty()) pool_.on_last_closed();
}

// Out of memory in the middle of it: this connection ends, the server goes on.
template <class Step>
void Connection::go_on(Step&& step) {
  if (closed_) return;
  if (!contain("an HTTP request", step)) close();
}

void Connection::end(ErrorCode error) {
  if (error == beast::error::timeout) ++pool_.counters.timed_out;
  close();
}

// Waiting has its own timeout, apart from reading: a keep-alive client that asks just before the
// idle timeout still gets the whole time to send its request.
void Connection::wait_for_request() {
  pool_.open.splice(pool_.open.end(), pool_.open, self_);
  answering_ = false;
  parser_.emplace();
  parser_->header_limit(static_cast<std::uint32_t>(pool_.options.max_header_bytes));
  parser_->body_limit(pool_.options.max_body_bytes);
  if (buffer_.size() > 0) return read_header();
  stream_.expires_after(pool_.options.idle_timeout);
  stream_.async_read_some(buffer_.prepare(4096),
                          [self = shared_from_this()](ErrorCode error, std::size_t bytes) {
                            self->go_on([&] {
                              if (error) return self->end(error);
                              self->buffer_.commit(bytes);
                              self->read_header();
                            });
                          });
}

void Connection::read_header() {
  stream_.expires_after(pool_.options.read_timeout);
  bhttp::async_read_header(stream_, buffer_, *parser_,
                           [self = shared_from_this()](ErrorCode error, std::size_t) {
                             self->go_on([&] { self->on_header(error); });
                           });
}

void Connection::on_header(ErrorCode error) {
  if (error) return refuse(error);
  if (!wants_continue(parser_->get()) || parser_->is_done()) return read_body();
  bodiless_.emplace(bhttp::status::continue_, parser_->get().version());
  bhttp::async_write(stream_, *bodiless_,
                     [self = shared_from_this()](ErrorCode failed, std::size_t) {
                       self->go_on([&] { failed ? self->end(failed) : self->read_body(); });
                     });
}

void Connection::read_body() {
  bhttp::async_read(stream_, buffer_, *parser_,
                    [self = shared_from_this()](ErrorCode error, std::size_t) {
                      self->go_on([&] { self->on_request(error); });
                    });
}

Result<Request> Connection::take_request() {
  auto& message = parser_->get();
  const auto target =
      parse_target(std::string_view(message.target().data(), message.target().size()));
  if (!target) return std::unexpected(target.error());
  Request request{.method = to_method(message.method()),
                  .path = target->path,
                  .query = target->query,
                  .headers = {},
                  .body = std::move(message.body()),
                  .peer = peer_};
  for (const auto& field : message)
    request.headers.push_back({std::string(field.name_string()), std::string(field.value())});
  return request;
}

void Connection::on_request(ErrorCode error) {
  if (error) return refuse(error);
  answering_ = true;
  const bool head_only = parser_->get().method() == bhttp::verb::head;
  const bool keep_alive = parser_->get().keep_alive() && !pool_.stopping;
  const unsigned version = parser_->get().version();
  const Result<Request> request = take_request();
  if (!request) {
    ++pool_.counters.malformed;
    return send(text_response(400, request.error().detail() + "\n"), false, version, head_only);
  }
  ++pool_.counters.requests;
  send(pool_.router.dispatch(*request), keep_alive, version, head_only);
}

// Beast's error says what was wrong with the request; an I/O error just ends the connection.
void Connection::refuse(ErrorCode error) {
  if (error == bhttp::error::end_of_stream ||
      error.category() != make_error_code(bhttp::error::bad_version).category()) {
    return end(error);
  }
  if (error == bhttp::error::partial_message) return end(error);
  ++pool_.counters.malformed;
  answering_ = true;
  refused_ = true;
  if (error == bhttp::error::body_limit) {
    return send(text_response(
                    413, fmt::format("The body exceeds {} bytes\n", pool_.options.max_body_bytes)),
                false, 11, false);
  }
  if (error == bhttp::error::header_limit || error == bhttp::error::buffer_overflow) {
    return send(text_response(431, fmt::format("The header exceeds {} bytes\n",
                                               pool_.options.max_header_bytes)),
                false, 11, false);
  }
  send(text_response(400, fmt::format("Malformed request: {}\n", error.message())), false, 11,
       false);
}

void Connection::send(Response answer, bool keep_alive, unsigned version, bool head_only) {
  stream_.expires_after(pool_.options.write_timeout);
  const auto status = static_cast<unsigned>(answer.status);
  auto sent = [self = shared_from_this(), keep_alive](ErrorCode error, std::size_t) {
    self->go_on([&] { self->on_sent(error, keep_alive, self->refused_); });
  };
  if (head_only) {
    bodiless_.emplace(bhttp::int_to_status(status), version);
    fill_head(*bodiless_, answer, keep_alive);
    return bhttp::async_write(stream_, *bodiless_, std::move(sent));
  }
  message_.emplace(bhttp::int_to_status(status), version);
  fill_head(*message_, answer, keep_alive);
  message_->body() = std::move(answer.body);
  bhttp::async_write(stream_, *message_, std::move(sent));
}

void Connection::on_sent(ErrorCode error, bool keep_alive, bool drain_first) {
  message_.reset();
  bodiless_.reset();
  if (error) return end(error);
  if (drain_first) return drain();
  if (!keep_alive || pool_.stopping) {
    ErrorCode ignored;
    (void)stream_.socket().shutdown(Tcp::socket::shutdown_send, ignored);
    return close();
  }
  wait_for_request();
}

// Closing with unread bytes would reset the connection, and the peer might never see our answer.
void Connection::drain() {
  ErrorCode ignored;
  (void)stream_.socket().shutdown(Tcp::socket::shutdown_send, ignored);
  answering_ = false;
  buffer_.clear();
  stream_.expires_after(limits::kDrainTimeout);
  drain_more();
}

void Connection::drain_more() {
  stream_.async_read_some(buffer_.prepare(limits::kReadBufferBytes),
                          [self = shared_from_this()](ErrorCode error, std::size_t bytes) {
                            self->go_on([&] {
                              self->drained_ += bytes;
                              if (error || self->drained_ > limits::kDrainBytes)
                                return self->close();
                              self->drain_more();
                            });
                          });
}

}  // namespace kvmend::http
