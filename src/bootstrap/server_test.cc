// The registry over real HTTP on loopback.
#include "bootstrap/server.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "bootstrap/client.h"
#include "bootstrap/service.h"
#include "bootstrap/test_util.h"
#include "http/client.h"

namespace kvmend::bootstrap {
namespace {

using namespace std::chrono_literals;
using Json = nlohmann::json;
using testing::ManualClock;
using testing::sample;

class BootstrapServerTest : public ::testing::Test {
 protected:
  void start(ServerOptions options = {}) {
    if (options.listen.port == limits::kDefaultPort) options.listen.port = 0;
    auto started = Server::start(std::move(options), clock);
    ASSERT_TRUE(started.has_value()) << started.error().to_string();
    server = std::move(*started);
  }
  http::Response ask(http::Method method, const std::string& target, const std::string& body = "") {
    auto answer = http::request(method, server->url() + target, body, 10s);
    EXPECT_TRUE(answer.has_value()) << answer.error().to_string();
    return answer.value_or(http::Response{.status = 0});
  }
  Client client(std::string key = "") {
    return *Client::create({.registry = server->url(), .shared_key = std::move(key)},
                           {.clock = &clock, .waiter = &waiter});
  }
  [[nodiscard]] Time soon() const { return clock.now() + 20s; }
  static std::string route(int dp, int cp, int tp, int pp) {
    return "/route?prefill_dp_rank=" + std::to_string(dp) +
           "&prefill_cp_rank=" + std::to_string(cp) + "&target_tp_rank=" + std::to_string(tp) +
           "&target_pp_rank=" + std::to_string(pp);
  }

  ManualClock clock;
  CancellableWaiter waiter;
  std::unique_ptr<Server> server;
};

using http::Method;

// Every answer that SGLang 0.5.23's own registry gives, and its texts.
TEST_F(BootstrapServerTest, AnswersAsSglangDoes) {
  start();
  EXPECT_EQ(ask(Method::kGet, "/health").body, "OK");
  EXPECT_EQ(ask(Method::kGet, route(-1, -1, -1, -1)).status, 503);
  EXPECT_EQ(ask(Method::kGet, "/route").status, 400);
  EXPECT_EQ(ask(Method::kGet, "/route?prefill_dp_rank=0&prefill_cp_rank=0").body,
            "Missing inputs for bootstrap server.");
  EXPECT_EQ(ask(Method::kPost, "/route").status, 405);
  const auto put = ask(Method::kPut, "/route", encode_registration(sample(0, 2)));
  EXPECT_EQ(put.status, 200);
  EXPECT_EQ(put.body, "OK");
  EXPECT_EQ(ask(Method::kGet, route(0, 0, 0, 0)).body,
            "Prefill server not fully registered yet (1 workers registered).");
  EXPECT_EQ(ask(Method::kPut, "/route", encode_registration(sample(1, 2))).status, 200);
  const auto topology = ask(Method::kGet, route(-1, -1, -1, -1));
  EXPECT_EQ(topology.status, 200);
  EXPECT_TRUE(topology.content_type.starts_with("application/json"));
  EXPECT_EQ(Json::parse(topology.body)["attn_tp_size"], 2);
  const auto rank = ask(Method::kGet, route(0, 0, 1, 0));
  EXPECT_EQ(rank.body, R"({"rank_ip":"127.0.0.1","rank_port":7001})");
  EXPECT_EQ(ask(Method::kGet, route(0, 0, 9, 0)).status, 404);
  EXPECT_EQ(ask(Method::kPost, "/register_dp_rank", R"({"bootstrap_room":"77","dp_rank":3})").body,
            "OK");
  EXPECT_EQ(ask(Method::kPost, "/query_dp_ranks", R"({"bootstrap_rooms":[77,78]})").body,
            R"({"77":3})");
}

TEST_F(BootstrapServerTest, BadRequestsAre400AndChangeNothing) {
  start();
  ASSERT_EQ(ask(Method::kPut, "/route", encode_registration(sample(0, 1))).status, 200);
  for (const char* body : {"", "{", "[]", R"({"attn_tp_size":1})"}) {
    EXPECT_EQ(ask(Method::kPut, "/route", body).status, 400) << body;
    EXPECT_EQ(ask(Method::kPost, "/register_dp_rank", body).status, 400) << body;
    EXPECT_EQ(ask(Method::kPost, "/query_dp_ranks", body).status, 400) << body;
  }
  EXPECT_EQ(ask(Method::kGet,
                "/route?prefill_dp_rank=x&prefill_cp_rank=0&target_tp_rank=0"
                "&target_pp_rank=0")
                .status,
            400);
  EXPECT_EQ(ask(Method::kPut, "/route", std::string(limits::kMaxRequestBytes + 1, ' ')).status,
            413);
  EXPECT_EQ(server->stats().registry.ranks, 1U);
  EXPECT_EQ(ask(Method::kGet, route(0, 0, 0, 0)).status, 200);
}

TEST_F(BootstrapServerTest, KvmendsClientSeesItsOwnFields) {
  start();
  EXPECT_TRUE(client().health(soon()).has_value());
  EXPECT_TRUE(client().register_rank(sample(0, 1, 0xabcULL), soon()).has_value());
  const auto topology = client().topology(soon());
  ASSERT_TRUE(topology.has_value()) << topology.error().to_string();
  EXPECT_EQ(topology->topology.kvmend_version, KVMEND_VERSION);
  const auto rank = client().rank({}, soon());
  ASSERT_TRUE(rank.has_value()) << rank.error().to_string();
  EXPECT_EQ(rank->rank.session_id, "127.0.0.1:9000");
  EXPECT_EQ(rank->rank.incarnation, Incarnation(0xabc));
  EXPECT_EQ(rank->epoch, topology->epoch);
  EXPECT_TRUE(client().register_room({.room = RoomId(5), .dp_rank = 0}, soon()).has_value());
  EXPECT_EQ(*client().rooms({RoomId(5)}, soon()), (RoomRanks{{RoomId(5), 0}}));
  const auto stock = ask(Method::kGet, route(-1, -1, -1, -1));
  EXPECT_EQ(stock.status, 409) << "a stock decode is told why";
  EXPECT_NE(stock.body.find("kvmend"), std::string::npos);
}

// Case X3.
TEST_F(BootstrapServerTest, X3_RegistrationsWithoutTheSharedKeyAreRefusedAndCounted) {
  start({.shared_key = "correct horse"});
  EXPECT_EQ(ask(Method::kPut, "/route", encode_registration(sample(0, 1))).status, 401);
  EXPECT_EQ(ask(Method::kPost, "/register_dp_rank", "{}").status, 401);
  EXPECT_EQ(client("wrong").register_rank(sample(0, 1), soon()).error().code(), Code::kAuthFailed);
  EXPECT_EQ(server->stats().unauthorized, 3U);
  EXPECT_EQ(server->stats().registry.ranks, 0U);
  EXPECT_TRUE(client("correct horse").register_rank(sample(0, 1), soon()).has_value());
  EXPECT_TRUE(client().topology(soon()).has_value()) << "reading is free";
}

TEST(ConstantTime, ComparesTextsOfAnyLength) {
  EXPECT_TRUE(equal_in_constant_time("", ""));
  EXPECT_TRUE(equal_in_constant_time("abc", "abc"));
  for (const char* other : {"", "a", "ab", "abd", "abcabc", "abcd"})
    EXPECT_FALSE(equal_in_constant_time(other, "abc")) << other;
  EXPECT_FALSE(equal_in_constant_time("a", ""));
}

// Case B5.
TEST_F(BootstrapServerTest, B5_WorksOnIpv6) {
  auto started = Server::start({.listen = {.host = "::1", .port = 0}}, clock);
  if (!started && started.error().code() == Code::kUnavailable) GTEST_SKIP() << "no IPv6 here";
  ASSERT_TRUE(started.has_value()) << started.error().to_string();
  server = std::move(*started);
  Registration registration = sample(0, 1, 4);
  registration.rank.rank_ip = "[::1]";
  EXPECT_TRUE(client().register_rank(registration, soon()).has_value());
  EXPECT_EQ(client().rank({}, soon())->rank.rank_ip, "::1");
}

// Case B2: decode asks first, prefill registers next, the registry starts last.
TEST_F(BootstrapServerTest, B2_StartsInAnyOrder) {
  start();
  const Address where = server->address();
  server.reset();
  const auto late =
      *Client::create({.registry = where.to_string()}, {.clock = &clock, .waiter = &waiter});
  Result<TopologyAnswer> seen;
  Result<void> registered;
  std::jthread decode([&] { seen = late.topology(clock.now() + 3600s); });
  std::jthread prefill(
      [&] { registered = late.register_rank(sample(0, 1, 3), clock.now() + 3600s); });
  start({.listen = where});
  prefill.join();
  decode.join();
  EXPECT_TRUE(registered.has_value()) << registered.error().to_string();
  EXPECT_TRUE(seen.has_value()) << seen.error().to_string();
}

}  // namespace
}  // namespace kvmend::bootstrap
