#include "http/client.h"

#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "http/raw_peer_test_util.h"
#include "http/server.h"

namespace kvmend::http {
namespace {

using namespace std::chrono_literals;

// A listener that accepts one connection, answers it with fixed bytes and closes.
class FixedAnswer {
 public:
  explicit FixedAnswer(std::string bytes, bool close_after = true) {
    fd_.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(fd_.get(), reinterpret_cast<const sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(fd_.get(), 1), 0);
    EXPECT_EQ(::getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    url_ = "http://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    thread_ = std::jthread([this, bytes = std::move(bytes), close_after] {
      accepted_.reset(::accept(fd_.get(), nullptr, nullptr));
      std::array<char, 4096> buffer{};
      (void)!::recv(accepted_.get(), buffer.data(), buffer.size(), 0);
      (void)!::send(accepted_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (close_after) accepted_.reset();
    });
  }
  [[nodiscard]] const std::string& url() const { return url_; }

 private:
  UniqueFd fd_;
  UniqueFd accepted_;
  std::string url_;
  std::jthread thread_;
};

void expect_error(const Result<Response>& result, Code code, const std::string& url) {
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code(), code) << result.error().to_string();
  EXPECT_NE(result.error().detail().find(url), std::string::npos) << result.error().to_string();
}

TEST(HttpClient, NamesTheUrlOfARefusedConnection) {
  std::string url;
  {
    const auto server = std::move(*Server::start({}, {}));
    url = server->url() + "/route";
  }
  const auto result = request(Method::kGet, url, "", 5s);
  expect_error(result, Code::kConnectionRefused, "GET " + url);
  EXPECT_EQ(result.error().origin(), Origin::kPeer);
  EXPECT_NE(result.error().sys_errno(), 0);
}

TEST(HttpClient, GivesUpAtItsDeadline) {
  const FixedAnswer silent("HTTP/1.1 200 OK\r\n", false);
  expect_error(request(Method::kGet, silent.url() + "/x", "", 50ms), Code::kDeadlineExceeded,
               silent.url() + "/x");
  expect_error(request(Method::kGet, "http://127.0.0.1:1/x", "", 0s), Code::kDeadlineExceeded,
               "http://127.0.0.1:1/x");
}

TEST(HttpClient, TellsApartBrokenAnswers) {
  const FixedAnswer nothing("");
  expect_error(request(Method::kGet, nothing.url() + "/", "", 5s), Code::kConnectionReset,
               nothing.url());
  const FixedAnswer half("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort");
  expect_error(request(Method::kGet, half.url() + "/", "", 5s), Code::kConnectionReset, half.url());
  const FixedAnswer garbage("SSH-2.0-OpenSSH_9.2\r\n");
  expect_error(request(Method::kGet, garbage.url() + "/", "", 5s), Code::kProtocolError,
               garbage.url());
  const FixedAnswer huge("HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n");
  expect_error(request(Method::kGet, huge.url() + "/", "", 5s, {.max_response_bytes = 4'999}),
               Code::kProtocolError, huge.url());
}

TEST(HttpClient, ReadsAnAnswerWithoutLengthToItsEnd) {
  const FixedAnswer answer("HTTP/1.0 503 Busy\r\nContent-Type: text/plain\r\n\r\nlater");
  const auto result = request(Method::kGet, answer.url() + "/", "", 5s);
  ASSERT_TRUE(result.has_value()) << result.error().to_string();
  EXPECT_EQ(result->status, 503);
  EXPECT_EQ(result->body, "later");
}

TEST(HttpClient, RefusesABadUrl) {
  expect_error(request(Method::kGet, "ftp://x", "", 5s), Code::kInvalidArgument, "ftp://x");
}

TEST(HttpClient, ResolvesNames) {
  const auto server = std::move(*Server::start({}, {}));
  const auto result = request(
      Method::kGet, "http://localhost:" + std::to_string(server->address().port) + "/", "", 5s);
  ASSERT_TRUE(result.has_value()) << result.error().to_string();
  EXPECT_EQ(result->status, 404);
}

}  // namespace
}  // namespace kvmend::http
