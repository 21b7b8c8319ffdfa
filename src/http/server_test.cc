#include "http/server.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "http/client.h"
#include "http/raw_peer_test_util.h"

namespace kvmend::http {
namespace {

using namespace std::chrono_literals;
using testing::RawPeer;

Router echo() {
  Router router;
  router.add(Method::kGet, "/hello", [](const Request& request) {
    const std::string* name = request.query_value("name");
    return text_response(200, "hello " + (name != nullptr ? *name : "nobody"));
  });
  router.add(Method::kPut, "/echo", [](const Request& r) { return json_response(200, r.body); });
  router.add(Method::kGet, "/throw",
             [](const Request&) -> Response { throw std::runtime_error("no"); });
  return router;
}

std::unique_ptr<Server> start(ServerOptions options = {}) {
  auto server = Server::start(std::move(options), echo());
  EXPECT_TRUE(server.has_value()) << server.error().to_string();
  return std::move(*server);
}

TEST(HttpServer, AnswersOverLoopback) {
  const auto server = start();
  EXPECT_NE(server->address().port, 0);
  const auto got = request(Method::kGet, server->url() + "/hello?name=a%20b", "", 5s);
  ASSERT_TRUE(got.has_value()) << got.error().to_string();
  EXPECT_EQ(got->status, 200);
  EXPECT_EQ(got->body, "hello a b");
  const auto put = request(Method::kPut, server->url() + "/echo", R"({"a":1})", 5s);
  ASSERT_TRUE(put.has_value());
  EXPECT_EQ(put->body, R"({"a":1})");
  EXPECT_EQ(put->content_type, "application/json");
  EXPECT_EQ(server->stats().requests, 2U);
}

TEST(HttpServer, HeadHasTheLengthButNoBody) {
  const auto server = start();
  const auto got = request(Method::kHead, server->url() + "/hello", "", 5s);
  ASSERT_TRUE(got.has_value()) << got.error().to_string();
  EXPECT_EQ(got->status, 200);
  EXPECT_TRUE(got->body.empty());
}

// Case B5.
TEST(HttpServer, B5_ListensOnIpv6Loopback) {
  auto server = Server::start({.listen = {.host = "::1", .port = 0}}, echo());
  if (!server && server.error().code() == Code::kUnavailable) GTEST_SKIP() << "no IPv6 here";
  ASSERT_TRUE(server.has_value()) << server.error().to_string();
  EXPECT_TRUE((*server)->url().starts_with("http://[::1]:"));
  const auto got = request(Method::kGet, (*server)->url() + "/hello", "", 5s);
  ASSERT_TRUE(got.has_value()) << got.error().to_string();
  EXPECT_EQ(got->status, 200);
}

TEST(HttpServer, RefusesWhatItMustNotOrCannotBind) {
  const auto remote = Server::start({.listen = {.host = "0.0.0.0", .port = 0}}, echo());
  ASSERT_FALSE(remote.has_value());
  EXPECT_EQ(remote.error().code(), Code::kPermissionDenied);
  EXPECT_NE(remote.error().detail().find("0.0.0.0"), std::string::npos);
  EXPECT_TRUE(
      Server::start({.listen = {.host = "0.0.0.0", .port = 0}, .allow_remote = true}, echo()));

  EXPECT_EQ(Server::start({.listen = {.host = "nowhere", .port = 0}}, echo()).error().code(),
            Code::kInvalidArgument);
  const auto server = start();
  const auto taken = Server::start({.listen = server->address()}, echo());
  ASSERT_FALSE(taken.has_value());
  EXPECT_EQ(taken.error().code(), Code::kUnavailable);
  EXPECT_NE(taken.error().detail().find(server->address().to_string()), std::string::npos);
}

TEST(HttpServer, AHandlersExceptionIsA500AndTheServerGoesOn) {
  const auto server = start();
  EXPECT_EQ(request(Method::kGet, server->url() + "/throw", "", 5s)->status, 500);
  EXPECT_EQ(request(Method::kGet, server->url() + "/hello", "", 5s)->status, 200);
}

TEST(HttpServer, KeepsConnectionsAliveAndTakesPipelinedRequests) {
  const auto server = start();
  RawPeer peer(server->address());
  ASSERT_TRUE(peer.send("GET /hello?name=1 HTTP/1.1\r\nHost: x\r\n\r\n"));
  EXPECT_NE(peer.read_until("hello 1").find("200 OK"), std::string::npos);
  ASSERT_TRUE(
      peer.send("GET /hello?name=2 HTTP/1.1\r\nHost: x\r\n\r\n"
                "GET /hello?name=3 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"));
  const std::string rest = peer.read_all();
  EXPECT_TRUE(peer.closed());
  EXPECT_NE(rest.find("hello 2"), std::string::npos);
  EXPECT_NE(rest.find("hello 3"), std::string::npos);
  EXPECT_EQ(server->stats().accepted, 1U);
}

TEST(HttpServer, AnswersExpectContinue) {
  const auto server = start();
  RawPeer peer(server->address());
  ASSERT_TRUE(
      peer.send("PUT /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n"
                "Expect: 100-continue\r\nConnection: close\r\n\r\n"));
  EXPECT_NE(peer.read_until("\r\n\r\n").find("100 Continue"), std::string::npos);
  ASSERT_TRUE(peer.send("12345"));
  EXPECT_NE(peer.read_all().find("12345"), std::string::npos);
}

TEST(HttpServer, TicksWithoutTraffic) {
  std::atomic<int> ticks{0};
  std::mutex mutex;
  std::condition_variable three;
  const auto server = start({.on_tick =
                                 [&] {
                                   if (++ticks == 2) throw std::runtime_error("upkeep broke");
                                   const std::scoped_lock lock(mutex);
                                   three.notify_all();
                                 },
                             .tick_interval = 5ms});
  std::unique_lock lock(mutex);
  EXPECT_TRUE(three.wait_for(lock, 10s, [&] { return ticks >= 3; }));
}

TEST(HttpServer, StopClosesIdleConnectionsAndRefusesNewOnes) {
  const auto server = start();
  RawPeer idle(server->address());
  ASSERT_TRUE(idle.send("GET /hello HTTP/1.1\r\nHost: x\r\n\r\n"));
  (void)idle.read_until("nobody");
  server->stop();
  server->stop();
  (void)idle.read_all();
  EXPECT_TRUE(idle.closed());
  EXPECT_EQ(server->stats().open, 0U);
  const auto late = request(Method::kGet, server->url() + "/hello", "", 5s);
  ASSERT_FALSE(late.has_value());
  EXPECT_EQ(late.error().code(), Code::kConnectionRefused);
}

TEST(HttpServer, StopLetsAnAnswerUnderWayFinish) {
  std::mutex mutex;
  std::condition_variable changed;
  bool entered = false;
  bool release = false;
  Router router;
  router.add(Method::kGet, "/slow", [&](const Request&) {
    std::unique_lock lock(mutex);
    entered = true;
    changed.notify_all();
    changed.wait(lock, [&] { return release; });
    return text_response(200, "done");
  });
  auto server = std::move(*Server::start({}, std::move(router)));
  Result<Response> answer;
  std::jthread caller([&] { answer = request(Method::kGet, server->url() + "/slow", "", 10s); });
  {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return entered; });
  }
  std::jthread stopper([&] { server->stop(); });
  {
    const std::scoped_lock lock(mutex);
    release = true;
    changed.notify_all();
  }
  stopper.join();
  caller.join();
  ASSERT_TRUE(answer.has_value()) << answer.error().to_string();
  EXPECT_EQ(answer->body, "done");
}

}  // namespace
}  // namespace kvmend::http
