#include "admin/admin_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "http/client.h"

namespace kvmend::admin {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

SessionInfo session(std::string id, std::string state) {
  SessionInfo info;
  info.session_id = std::move(id);
  info.state = std::move(state);
  info.last_error = "peer_silent (peer): it took no byte for 2000 ms";
  info.history.push_back({1.5, "healthy", info.state, "why not \xff"});
  return info;
}

Sources sources() {
  return {.metrics = [] { return std::string("kvmend_bytes_total 1\n"); },
          .sessions =
              [] {
                return std::vector{session("10.0.0.2:7001", "failed"),
                                   session("10.0.0.3:7001", "healthy")};
              },
          .stats = [] { return EngineStats{.bytes_sent = 42}; },
          .quarantined =
              [](KvRole role) {
                return metrics::Quarantined{.rooms = role == KvRole::kDecode ? 2U : 0U,
                                            .full = true};
              },
          .session_id = "127.0.0.1:1",
          .incarnation = "00ff"};
}

TEST(Admin, AnswersEveryRouteOverHttp) {
  const auto server = start_admin(*parse_address("127.0.0.1:0"), false, sources());
  ASSERT_TRUE(server) << server.error().to_string();
  const auto get = [&](const char* path) {
    const auto response = http::request(http::Method::kGet, (*server)->url() + path, {}, 5s);
    return response ? response->body : response.error().to_string();
  };
  EXPECT_EQ(get("/metrics"), "kvmend_bytes_total 1\n");
  EXPECT_THAT(get("/healthz"), HasSubstr("1 of 2 sessions are blacklisted"));
  EXPECT_THAT(get("/"), HasSubstr("<title>kvmend</title>"));
  const auto json = nlohmann::json::parse(get("/sessions"));
  EXPECT_EQ(json["engine"]["bytes_sent"], 42);
  EXPECT_EQ(json["quarantine"]["decode"]["rooms"], 2);
  EXPECT_EQ(json["quarantine"]["prefill"]["rooms"], 0);
  EXPECT_EQ(json["quarantine"]["decode"]["full"], true);
  EXPECT_EQ(json["sessions"][0]["state"], "failed");
  EXPECT_EQ(json["sessions"][0]["history"][0]["to"], "failed");
}

TEST(Admin, IsUnhealthyOnlyWhenEverySessionIsBlacklisted) {
  EXPECT_EQ(health_response({}).status, 200);
  EXPECT_EQ(health_response({session("a", "failed"), session("b", "healthy")}).status, 200);
  const http::Response all = health_response({session("a", "failed"), session("b", "probing")});
  EXPECT_EQ(all.status, 503);
  EXPECT_THAT(all.body, HasSubstr("peer_silent"));
}

}  // namespace
}  // namespace kvmend::admin
