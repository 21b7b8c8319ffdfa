// What hostile or broken peers do to a server: it stays up, bounded and reachable.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "http/client.h"
#include "http/raw_peer_test_util.h"
#include "http/server.h"

namespace kvmend::http {
namespace {

using namespace std::chrono_literals;
using testing::RawPeer;

std::unique_ptr<Server> start(ServerOptions options = {}) {
  Router router;
  router.add(Method::kGet, "/health", [](const Request&) { return text_response(200, "OK"); });
  router.add(Method::kPut, "/echo", [](const Request& r) { return text_response(200, r.body); });
  auto server = Server::start(std::move(options), std::move(router));
  EXPECT_TRUE(server.has_value()) << server.error().to_string();
  return std::move(*server);
}

bool healthy(const Server& server) {
  const auto answer = request(Method::kGet, server.url() + "/health", "", 10s);
  return answer.has_value() && answer->status == 200;
}

std::string answer_to(const Server& server, std::string_view bytes) {
  RawPeer peer(server.address());
  (void)peer.send(bytes);
  peer.finish_sending();
  return peer.read_all();
}

TEST(HttpAbuse, MalformedRequestsGet400AndCostOnlyTheirConnection) {
  const auto server = start();
  const std::vector<std::string> cases{
      "garbage\r\n\r\n",
      "GET /health\r\n\r\n",
      "GET /health HTTP/9.9\r\n\r\n",
      "GET /health HTTP/1.1\r\nbad header\r\n\r\n",
      "GET %00 HTTP/1.1\r\nHost: x\r\n\r\n",
      "GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n",
      "GET http://other/health HTTP/1.1\r\nHost: x\r\n\r\n",
      "PUT /echo HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
      "PUT /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
      "PUT /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
      std::string("\0\0\0\0\0\0\r\n\r\n", 10),
  };
  for (const std::string& bytes : cases)
    EXPECT_TRUE(answer_to(*server, bytes).starts_with("HTTP/1.1 400")) << bytes;
  EXPECT_EQ(server->stats().malformed, cases.size());
  EXPECT_TRUE(healthy(*server));
}

TEST(HttpAbuse, OversizeIsRefusedBeforeItIsStored) {
  const auto server = start({.max_header_bytes = 2'048, .max_body_bytes = 1'000});
  EXPECT_NE(
      answer_to(*server, "GET /health HTTP/1.1\r\nX: " + std::string(10'000, 'a') + "\r\n\r\n")
          .find(" 431 "),
      std::string::npos);
  // A length of a terabyte, announced only.
  EXPECT_NE(
      answer_to(*server, "PUT /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1099511627776\r\n\r\n")
          .find(" 413 "),
      std::string::npos);
  // The same in chunks, where nothing is announced.
  std::string chunked = "PUT /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (int i = 0; i < 20; ++i) chunked += "64\r\n" + std::string(100, 'b') + "\r\n";
  EXPECT_NE(answer_to(*server, chunked).find(" 413 "), std::string::npos);
  EXPECT_EQ(request(Method::kPut, server->url() + "/echo", std::string(1'000, 'c'), 5s)->status,
            200);
  const auto large = request(Method::kPut, server->url() + "/echo", std::string(500'000, 'c'), 5s);
  ASSERT_TRUE(large.has_value()) << large.error().to_string();
  EXPECT_EQ(large->status, 413);
}

TEST(HttpAbuse, SlowlorisIsCutOffAlthoughItKeepsSending) {
  const auto server = start({.idle_timeout = 5s, .read_timeout = 100ms});
  RawPeer slow(server->address());
  ASSERT_TRUE(slow.send("GET /health HTTP/1.1\r\n"));
  // One byte whenever 10 ms pass without the server closing: the read timeout covers the request.
  for (int i = 0; i < 2'000 && slow.send("X"); ++i) {
    pollfd entry{.fd = -1, .events = 0, .revents = 0};
    (void)::poll(&entry, 1, 10);
    if (server->stats().timed_out > 0) break;
  }
  EXPECT_EQ(server->stats().timed_out, 1U);
  (void)slow.read_all();
  EXPECT_TRUE(slow.closed());
  EXPECT_TRUE(healthy(*server));
}

TEST(HttpAbuse, IdleConnectionsTimeOutWithoutTraffic) {
  const auto server = start({.idle_timeout = 50ms});
  RawPeer idle(server->address());
  EXPECT_EQ(idle.read_all(), "");
  EXPECT_TRUE(idle.closed());
  // The peer sees the end a moment before the server has counted it.
  for (int i = 0; i < 5'000 && server->stats().open > 0; ++i) (void)::poll(nullptr, 0, 1);
  EXPECT_EQ(server->stats().open, 0U);
}

// Case X4, small and whole: more idle connections than there is room for, then a real request.
TEST(HttpAbuse, X4_IdleConnectionsAreShedAndRealPeersGetIn) {
  for (const std::size_t count : {300U, 900U}) {
    const auto server = start();
    std::vector<RawPeer> idle;
    idle.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      idle.emplace_back(server->address());
      ASSERT_TRUE(idle.back().is_open());
    }
    EXPECT_TRUE(healthy(*server));
    EXPECT_GE(server->stats().shed, count + 1 - limits::kMaxConnections);
    EXPECT_LE(server->stats().open, limits::kMaxConnections);
    (void)idle.front().read_all();
    EXPECT_TRUE(idle.front().closed()) << "the oldest idle one goes first";
  }
}

TEST(HttpAbuse, AConnectionThatWaitsLongestIsShedNotTheActiveOne) {
  const auto server = start({.max_connections = 3});
  constexpr std::string_view kAsk = "GET /health HTTP/1.1\r\nHost: x\r\n\r\n";
  RawPeer active(server->address());
  RawPeer idle(server->address());
  RawPeer third(server->address());
  for (RawPeer* peer : {&active, &idle, &third, &active}) {  // `idle` waits longest now
    ASSERT_TRUE(peer->send(kAsk));
    (void)peer->read_until("\r\n\r\nOK");
  }
  EXPECT_TRUE(healthy(*server));  // the fourth: `idle` has to go
  (void)idle.read_all();
  EXPECT_TRUE(idle.closed());
  ASSERT_TRUE(active.send(kAsk));
  EXPECT_NE(active.read_until("\r\n\r\nOK").find("200 OK"), std::string::npos);
}

// Case X2, in small: random and mutated bytes.
TEST(HttpAbuse, X2_RandomBytesLeaveTheServerAlone) {
  const auto server = start({.read_timeout = 500ms});
  std::mt19937 random(7);
  const std::string valid = "PUT /echo?a=b HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody";
  for (int round = 0; round < 300; ++round) {
    std::string bytes = valid;
    for (int flips = 0; flips <= round % 9; ++flips)
      bytes[random() % bytes.size()] = static_cast<char>(random());
    if (round % 3 == 0)
      for (char& c : bytes) c = static_cast<char>(random());
    (void)answer_to(*server, bytes);
  }
  EXPECT_TRUE(healthy(*server));
}

}  // namespace
}  // namespace kvmend::http
