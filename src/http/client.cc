#include "http/client.h"

#include <fmt/format.h>

#include <cerrno>
#include <exception>
#include <optional>
#include <utility>

#include "base/try.h"
#include "http/beast.h"
#include "http/url.h"

namespace kvmend::http {
namespace {

namespace bhttp = beast::http;

bhttp::verb to_verb(Method method) {
  switch (method) {
    case Method::kHead:
      return bhttp::verb::head;
    case Method::kPut:
      return bhttp::verb::put;
    case Method::kPost:
      return bhttp::verb::post;
    case Method::kDelete:
      return bhttp::verb::delete_;
    default:
      return bhttp::verb::get;
  }
}

// One request from start to end on an event loop of its own: resolve, connect, write, read. The
// timer is the only deadline; when it fires it closes whatever is open.
class Call {
 public:
  Call(Method method, Url url, std::string body, const ClientOptions& options)
      : method_(method), url_(std::move(url)), request_(to_verb(method), url_.target, 11) {
    request_.set(bhttp::field::host, url_.authority());
    request_.set(bhttp::field::user_agent, "kvmend/" KVMEND_VERSION);
    request_.keep_alive(false);
    if (!options.bearer_token.empty())
      request_.set(bhttp::field::authorization, "Bearer " + options.bearer_token);
    if (!body.empty()) request_.set(bhttp::field::content_type, options.content_type);
    request_.body() = std::move(body);
    request_.prepare_payload();
    parser_.body_limit(options.max_response_bytes);
    parser_.header_limit(static_cast<std::uint32_t>(limits::kMaxHeaderBytes));
    if (method == Method::kHead) parser_.skip(true);
  }

  Result<Response> run(Duration timeout) {
    timer_.expires_after(timeout);
    timer_.async_wait([this](ErrorCode cancelled) {
      if (cancelled) return;
      timed_out_ = true;
      close();
    });
    resolve();
    io_.run();
    if (timed_out_)
      return failure(Code::kDeadlineExceeded, Origin::kLink,
                     fmt::format("no answer within {:.1f} s", to_seconds(timeout)));
    if (error_) return classify();
    return answer();
  }

 private:
  void resolve() {
    ErrorCode not_numeric;
    const auto host = asio::ip::make_address(url_.host, not_numeric);
    if (!not_numeric) {
      stream_.async_connect(Tcp::endpoint(host, url_.port),
                            [this](ErrorCode error) { write(error); });
      return;
    }
    resolver_.async_resolve(
        url_.host, std::to_string(url_.port),
        [this](ErrorCode error, const Tcp::resolver::results_type& found) {
          if (finished(error, "resolving the host")) return;
          stream_.async_connect(found,
                                [this](ErrorCode failed, const Tcp::endpoint&) { write(failed); });
        });
  }

  void write(ErrorCode error) {
    if (finished(error, "connecting")) return;
    bhttp::async_write(stream_, request_, [this](ErrorCode failed, std::size_t) { read(failed); });
  }

  // A server may answer (413, say) and close before it has read the whole request: look for that
  // answer even if writing failed.
  void read(ErrorCode write_error) {
    bhttp::async_read(stream_, buffer_, parser_, [this, write_error](ErrorCode error, std::size_t) {
      if (error && write_error) return (void)finished(write_error, "sending the request");
      if (!finished(error, "reading the answer")) close();
    });
  }

  bool finished(ErrorCode error, const char* doing) {
    if (!error) return timed_out_;
    if (!timed_out_) {
      error_ = error;
      doing_ = doing;
    }
    close();
    return true;
  }

  void close() {
    resolver_.cancel();
    timer_.cancel();
    stream_.close();
  }

  std::unexpected<Status> failure(Code code, Origin origin, std::string_view why, int number = 0) {
    return fail(
        code, origin,
        fmt::format("{} http://{}{}: {}", method_name(method_), url_.authority(), url_.target, why),
        number);
  }

  std::unexpected<Status> classify() {
    const std::string why = fmt::format("{} failed: {}", doing_, error_.message());
    if (error_ == bhttp::error::body_limit || error_ == bhttp::error::header_limit)
      return failure(Code::kProtocolError, Origin::kPeer, "the answer is too large");
    if (error_ == bhttp::error::end_of_stream || error_ == bhttp::error::partial_message)
      return failure(Code::kConnectionReset, Origin::kPeer,
                     "closed before the answer was complete");
    if (error_.category() == make_error_code(bhttp::error::bad_version).category())
      return failure(Code::kProtocolError, Origin::kPeer, why);
    const int number = error_.category() == boost::system::system_category() ? error_.value() : 0;
    switch (number) {
      case ECONNREFUSED:
        return failure(Code::kConnectionRefused, Origin::kPeer, why, number);
      case ECONNRESET:
      case EPIPE:
        return failure(Code::kConnectionReset, Origin::kPeer, why, number);
      case EADDRNOTAVAIL:
      case EMFILE:
      case ENFILE:
      case ENOBUFS:
      case ENOMEM:
        return failure(Code::kResourceExhausted, Origin::kLocal, why, number);
      default:
        return failure(Code::kUnavailable, Origin::kLink, why, number);
    }
  }

  Response answer() {
    auto message = parser_.release();
    Response response{.status = static_cast<int>(message.result_int()),
                      .body = std::move(message.body()),
                      .content_type = std::string(message[bhttp::field::content_type]),
                      .headers = {}};
    for (const auto& field : message)
      response.headers.push_back({std::string(field.name_string()), std::string(field.value())});
    return response;
  }

  Method method_;
  Url url_;
  bhttp::request<bhttp::string_body> request_;
  bhttp::response_parser<bhttp::string_body> parser_;
  beast::flat_buffer buffer_{limits::kReadBufferBytes};
  asio::io_context io_{1};
  asio::steady_timer timer_{io_};
  Tcp::resolver resolver_{io_};
  beast::tcp_stream stream_{io_};
  ErrorCode error_;
  const char* doing_ = "";
  bool timed_out_ = false;
};

}  // namespace

Result<Response> request(Method method, const std::string& url, std::string body, Duration timeout,
                         const ClientOptions& options) {
  KVM_ASSIGN_OR_RETURN(Url parsed, parse_url(url));
  if (timeout <= Duration::zero()) {
    return fail(Code::kDeadlineExceeded, Origin::kCaller,
                fmt::format("{} {}: the deadline has passed", method_name(method), url));
  }
  try {
    Call call(method, std::move(parsed), std::move(body), options);
    return call.run(timeout);
  } catch (const std::exception& error) {  // out of descriptors for the event loop, or of memory
    return fail(Code::kResourceExhausted, Origin::kLocal,
                fmt::format("{} {}: {}", method_name(method), url, error.what()));
  }
}

}  // namespace kvmend::http
