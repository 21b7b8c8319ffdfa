#include "bootstrap/client.h"

#include <gtest/gtest.h>

#include <deque>

#include "bootstrap/test_util.h"

namespace kvmend::bootstrap {
namespace {

using namespace std::chrono_literals;
using testing::ManualClock;
using testing::sample;
using testing::VirtualWaiter;

class ClientTest : public ::testing::Test {
 protected:
  ClientTest() {
    environment.clock = &clock;
    environment.waiter = &waiter;
    environment.request = [this](http::Method, const std::string& url, const std::string& body,
                                 Duration timeout,
                                 const http::ClientOptions& options) -> Result<http::Response> {
      ++requests;
      last_url = url;
      last_body = body;
      last_token = options.bearer_token;
      if (answers.empty()) {
        clock.advance(std::min(cost, timeout));
        return fail(Code::kConnectionRefused, Origin::kPeer, "GET " + url + ": refused");
      }
      auto answer = answers.front();
      if (answers.size() > 1) answers.pop_front();
      return answer;
    };
  }
  Client client() {
    return *Client::create({.registry = "127.0.0.1", .shared_key = "k"}, environment);
  }
  [[nodiscard]] Time in(Duration d) const { return clock.now() + d; }

  ManualClock clock;
  VirtualWaiter waiter{clock};
  ClientEnvironment environment;
  std::deque<Result<http::Response>> answers;
  Duration cost = 1ms;
  int requests = 0;
  std::string last_url;
  std::string last_body;
  std::string last_token;
};

TEST_F(ClientTest, BuildsSglangsRequests) {
  answers = {http::text_response(200, "OK")};
  EXPECT_TRUE(client().register_rank(sample(0, 1), in(1s)).has_value());
  EXPECT_EQ(last_url, "http://127.0.0.1:8998/route");
  EXPECT_EQ(last_token, "k");
  EXPECT_EQ(parse_registration(last_body)->topology.backend, "kvmend");
  answers = {http::json_response(200, R"({"rank_ip":"::1","rank_port":5})")};
  EXPECT_EQ(client().rank({.dp = 1, .cp = 2, .tp = 3, .pp = 4}, in(1s))->rank.rank_ip, "::1");
  EXPECT_TRUE(
      last_url.starts_with("http://127.0.0.1:8998/route?prefill_dp_rank=1&prefill_cp_rank=2"
                           "&target_tp_rank=3&target_pp_rank=4&backend=kvmend"));
  answers = {http::json_response(200, R"({"7":1})")};
  EXPECT_EQ(*client().rooms({RoomId(7)}, in(1s)), (RoomRanks{{RoomId(7), 1}}));
}

// Cases B2, B3: the registry starts last, or is slow, or isn't complete: clients ask again.
TEST_F(ClientTest, B3_AsksAgainUntilTheRegistryIsReady) {
  answers = {
      fail(Code::kConnectionRefused, Origin::kPeer, "refused"),
      fail(Code::kConnectionReset, Origin::kPeer, "reset"),
      fail(Code::kDeadlineExceeded, Origin::kLink, "slow"),
      http::text_response(500, "starting"),
      http::text_response(503, "Prefill server not fully registered yet (1 workers"),
      http::json_response(200, encode_topology({.topology = sample(0, 1, 9).topology}, true))};
  const auto topology = client().topology(in(60s));
  ASSERT_TRUE(topology.has_value()) << topology.error().to_string();
  EXPECT_EQ(topology->topology.page_size, 64);
  EXPECT_EQ(requests, 6);
}

TEST_F(ClientTest, B2_EndsAtTheDeadlineWithTheRegistryAndTheLastReason) {
  const Time deadline = in(15s);
  const auto result = client().topology(deadline);
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code(), Code::kDeadlineExceeded);
  EXPECT_NE(result.error().detail().find("http://127.0.0.1:8998"), std::string::npos);
  EXPECT_NE(result.error().detail().find("refused"), std::string::npos);
  EXPECT_LE(clock.now(), deadline);
  EXPECT_GE(requests, 8) << "about every 1.5 s";
  EXPECT_LE(requests, 25) << "and no busy loop";
}

TEST_F(ClientTest, APassedDeadlineStillTriesOnce) {
  answers = {http::text_response(200, "OK")};
  EXPECT_TRUE(client().health(clock.now() - 1s).has_value());
}

TEST_F(ClientTest, FinalAnswersAreNotRepeated) {
  const std::vector<std::pair<int, Code>> table{{400, Code::kInvalidArgument},
                                                {401, Code::kAuthFailed},
                                                {404, Code::kNotFound},
                                                {409, Code::kIncompatible},
                                                {410, Code::kPeerRestarted}};
  for (const auto& [status, code] : table) {
    requests = 0;
    answers = {http::text_response(status, "the reason\n")};
    const auto result = client().register_rank(sample(0, 1), in(60s));
    ASSERT_FALSE(result.has_value());
    EXPECT_EQ(result.error().code(), code);
    EXPECT_NE(result.error().detail().find("the reason"), std::string::npos);
    EXPECT_EQ(requests, 1);
  }
}

TEST_F(ClientTest, AStockPrefillIsNamedWithTheFix) {
  answers = {http::json_response(200, encode_topology({.topology = sample(0, 1).topology}, false))};
  const auto result = client().topology(in(1s));
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code(), Code::kIncompatible);
  for (const char* part : {"prefill runs SGLang's stock manager", "decode runs kvmend",
                           "--disaggregation-transfer-backend"})
    EXPECT_NE(result.error().detail().find(part), std::string::npos) << part;
}

TEST_F(ClientTest, SomethingElseBehindTheAddressIsSaid) {
  answers = {http::text_response(200, "<html>")};
  EXPECT_EQ(client().topology(in(1s)).error().code(), Code::kProtocolError);
  EXPECT_EQ(client().rank({}, in(1s)).error().code(), Code::kProtocolError);
  EXPECT_NE(client().rooms({}, in(1s)).error().detail().find("127.0.0.1:8998"), std::string::npos);
  EXPECT_EQ(Client::create({.registry = "https://x"}, environment).error().code(),
            Code::kInvalidArgument);
}

TEST_F(ClientTest, IsCancelledWhileItWaits) {
  waiter.cancel_after = 2;
  EXPECT_EQ(client().health(in(60s)).error().code(), Code::kCancelled);
  EXPECT_EQ(requests, 2);
}

TEST(Retry, DelaysDoubleAreCappedAndJittered) {
  const RetryOptions options;
  for (const std::uint64_t random : {0ULL, 12345ULL, ~0ULL}) {
    for (const auto& [attempt, nominal] : std::vector<std::pair<std::uint32_t, Duration>>{
             {1, 100ms}, {2, 200ms}, {5, 1600ms}, {6, 2s}, {4'000'000'000U, 2s}}) {
      EXPECT_GE(retry_delay(options, attempt, random), nominal / 2);
      EXPECT_LE(retry_delay(options, attempt, random), nominal);
    }
  }
}

TEST(Waiter, CancelEndsWaitsNowAndLater) {
  CancellableWaiter waiter;
  EXPECT_TRUE(waiter.wait(0ms));
  waiter.cancel();
  EXPECT_FALSE(waiter.wait(1h));
}

}  // namespace
}  // namespace kvmend::bootstrap
