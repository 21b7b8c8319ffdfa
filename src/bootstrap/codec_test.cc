#include "bootstrap/codec.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "bootstrap/json.h"
#include "bootstrap/limits.h"
#include "bootstrap/test_util.h"

namespace kvmend::bootstrap {
namespace {

using testing::sample;

// What SGLang 0.5.23 sends from a rank of a tp=2 instance.
Json stock_body() {
  return Json::parse(R"({
    "attn_tp_size": 2, "attn_tp_rank": 1, "attn_cp_size": 1, "attn_cp_rank": 0,
    "attn_dp_size": 1, "attn_dp_rank": 0, "pp_size": 1, "pp_rank": 0,
    "system_dp_size": 1, "system_dp_rank": 0, "rank_ip": "10.0.0.2", "rank_port": 41234,
    "page_size": 64, "kv_cache_dtype": "torch.bfloat16", "kv_layout": null,
    "dsv41_spec_layout": null, "load_balance_method": "follow_bootstrap_room",
    "enable_dsa_cache_layer_split": false, "enable_kv_cache_sharding": false,
    "prefill_http_port": 30000, "decode_allocation_policy": "early"})");
}

std::string refusal_of(const Json& body) {
  const auto result = parse_registration(body.dump());
  return result ? "accepted" : result.error().detail();
}

TEST(Codec, ReadsWhatSglangSends) {
  const auto got = parse_registration(stock_body().dump());
  ASSERT_TRUE(got.has_value()) << got.error().to_string();
  EXPECT_EQ(got->key, (RankKey{.tp = 1}));
  EXPECT_EQ(got->topology.attn_tp_size, 2);
  EXPECT_EQ(got->topology.expected_ranks(), 2);
  EXPECT_EQ(got->topology.kv_cache_dtype, "torch.bfloat16");
  EXPECT_FALSE(got->topology.kv_layout.has_value());
  EXPECT_EQ(got->topology.prefill_http_port, 30000);
  EXPECT_EQ(got->topology.backend, "");
  EXPECT_EQ(got->rank.rank_ip, "10.0.0.2");
  EXPECT_EQ(got->rank.rank_port, 41234);
  EXPECT_FALSE(got->rank.incarnation.is_set());
}

TEST(Codec, FoldsDataParallelismAsSglangDoes) {
  Json body = stock_body();
  body["attn_dp_size"] = 4;
  body["attn_dp_rank"] = 3;
  EXPECT_EQ(parse_registration(body.dump())->key.dp, 3);
  EXPECT_EQ(parse_registration(body.dump())->topology.dp_size, 4);
  body["system_dp_size"] = 2;
  body["system_dp_rank"] = 1;
  EXPECT_EQ(parse_registration(body.dump())->key.dp, 1);
  EXPECT_EQ(parse_registration(body.dump())->topology.dp_size, 2);
}

TEST(Codec, TakesNumbersWrittenAsTextAndIpv6InBrackets) {
  Json body = stock_body();
  body["rank_port"] = "41234";
  body["rank_ip"] = "[::1]";  // case B5
  EXPECT_EQ(parse_registration(body.dump())->rank.rank_port, 41234);
  EXPECT_EQ(parse_registration(body.dump())->rank.rank_ip, "::1");
}

TEST(Codec, NamesTheMemberThatIsWrong) {
  for (const char* name : {"attn_tp_size", "attn_tp_rank", "attn_cp_size", "attn_cp_rank",
                           "attn_dp_size", "attn_dp_rank", "pp_size", "pp_rank", "system_dp_size",
                           "system_dp_rank", "rank_ip", "rank_port", "page_size"}) {
    Json body = stock_body();
    body.erase(name);
    EXPECT_NE(refusal_of(body).find(std::string("'") + name + "' is missing"), std::string::npos);
    for (const Json& wrong : {Json(1.5), Json(true), Json::array(), Json("x\n"), Json(-1),
                              Json(1e30), Json(std::uint64_t{1} << 63U)}) {
      body[name] = wrong;
      EXPECT_NE(refusal_of(body).find(name), std::string::npos) << name << " = " << wrong;
    }
  }
  Json body = stock_body();
  body["attn_tp_rank"] = 2;
  EXPECT_EQ(refusal_of(body), "attn_tp_rank 2 isn't below attn_tp_size 2");
  body = stock_body();
  body["attn_tp_size"] = body["pp_size"] = body["attn_cp_size"] = body["attn_dp_size"] = 65'536;
  EXPECT_NE(refusal_of(body).find("more than 65536 ranks"), std::string::npos);
  body = stock_body();
  body["kv_layout"] = std::string(300, 'a');
  EXPECT_NE(refusal_of(body).find("'kv_layout' is longer"), std::string::npos);
  body["kv_layout"] = nullptr;
  body["dsv41_spec_layout"] = std::string(20'000, 'a');
  EXPECT_NE(refusal_of(body).find("dsv41_spec_layout"), std::string::npos);
  body = stock_body();
  body["incarnation"] = "xyz";
  EXPECT_NE(refusal_of(body).find("incarnation"), std::string::npos);
}

TEST(Codec, RefusesWhatIsNoObjectTooLargeOrTooDeep) {
  for (const std::string& body : {std::string(), std::string("{"), std::string("[]"),
                                  std::string("null"), std::string("\xff\xfe")}) {
    EXPECT_FALSE(parse_registration(body).has_value()) << body;
    EXPECT_FALSE(parse_room(body).has_value()) << body;
    EXPECT_FALSE(parse_room_query(body).has_value()) << body;
  }
  EXPECT_FALSE(parse_object("{\"a\":\"" + std::string(limits::kMaxRequestBytes, 'a') + "\"}"));
  const std::string deep = "{\"a\":" + std::string(100'000, '[') + std::string(100'000, ']') + "}";
  EXPECT_NE(parse_object(deep).error().detail().find("nested"), std::string::npos);
  EXPECT_TRUE(json_depth_within(R"({"a":"[[[[[[[[[[\"[[[["})", 1));
  EXPECT_FALSE(json_depth_within("[[1]]", 1));
  EXPECT_TRUE(json_depth_within("[1],[2],[3]", 1));
}

TEST(Codec, RegistrationSurvivesTheWay) {
  Registration registration = sample(1, 2, 0xfedcba9876543210ULL);
  registration.topology.spec_layout = R"({"block":3,"kv":[1,2]})";
  registration.topology.kv_layout = "page_first";
  registration.topology.follow_bootstrap_room = false;
  registration.topology.dp_size = 3;
  registration.key.dp = 2;
  registration.rank.lease = std::chrono::seconds(30);
  const auto got = parse_registration(encode_registration(registration));
  ASSERT_TRUE(got.has_value()) << got.error().to_string();
  EXPECT_EQ(*got, registration);
}

// SGLang builds a dataclass from the answer: a member it doesn't know is a TypeError.
TEST(Codec, TopologyHasExactlySglangsMembersUnlessExtended) {
  Topology topology = sample(0, 2, 5).topology;
  const Json plain = Json::parse(encode_topology({.topology = topology, .epoch = 7}, false));
  const std::set<std::string> want{"attn_tp_size",
                                   "attn_cp_size",
                                   "dp_size",
                                   "pp_size",
                                   "page_size",
                                   "kv_cache_dtype",
                                   "follow_bootstrap_room",
                                   "enable_dsa_cache_layer_split",
                                   "decode_allocation_policy",
                                   "enable_kv_cache_sharding",
                                   "prefill_http_port",
                                   "target_tp_rank",
                                   "target_tp_ranks",
                                   "target_cp_ranks",
                                   "target_pp_ranks",
                                   "required_dst_info_num",
                                   "required_prefill_response_num"};
  std::set<std::string> got;
  for (const auto& [name, value] : plain.items()) got.insert(name);
  EXPECT_EQ(got, want);

  const std::string extended = encode_topology({.topology = topology, .epoch = 7}, true);
  const auto back = parse_topology(extended);
  ASSERT_TRUE(back.has_value()) << back.error().to_string();
  EXPECT_EQ(back->topology, topology);
  EXPECT_EQ(back->epoch, 7U);
}

TEST(Codec, RankSurvivesTheWayAndHidesOurFieldsFromOthers) {
  RankRecord rank = sample(1, 2, ~0ULL).rank;
  const auto back = parse_rank(encode_rank({.rank = rank, .epoch = 3}, true));
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(back->rank, rank);
  EXPECT_EQ(back->epoch, 3U);
  EXPECT_EQ(encode_rank({.rank = rank, .epoch = 3}, false),
            R"({"rank_ip":"127.0.0.1","rank_port":7001})");
}

TEST(Codec, Rooms) {
  const RoomId large{(1ULL << 63U) - 1};
  const auto room = parse_room(encode_room({.room = large, .dp_rank = 3}));
  ASSERT_TRUE(room.has_value());
  EXPECT_EQ(room->room, large);
  EXPECT_EQ(room->dp_rank, 3);
  const std::vector<RoomId> rooms{RoomId(0), large};
  EXPECT_EQ(*parse_room_query(encode_room_query(rooms)), rooms);
  const RoomRanks ranks{{RoomId(4), 1}, {large, 2}};
  EXPECT_EQ(*parse_room_ranks(encode_room_ranks(ranks)), ranks);
  EXPECT_FALSE(parse_room(R"({"bootstrap_room":-1,"dp_rank":0})").has_value());
  EXPECT_FALSE(parse_room_query(R"({"bootstrap_rooms":[1,"x"]})").has_value());
  EXPECT_FALSE(parse_room_ranks(R"({"a":1})").has_value());
  Json many{{"bootstrap_rooms", std::vector<int>(limits::kMaxRoomsPerQuery + 1, 1)}};
  EXPECT_FALSE(parse_room_query(many.dump()).has_value());
}

// Case X2, for the parsers alone.
TEST(Codec, X2_MutatedBodiesAreHandled) {
  std::mt19937 random(3);
  const std::string valid = stock_body().dump();
  for (int i = 0; i < 3'000; ++i) {
    std::string body = valid;
    for (int flips = 0; flips <= i % 5; ++flips)
      body[random() % body.size()] = static_cast<char>(random());
    if (const auto got = parse_registration(body)) (void)encode_registration(*got);
    (void)parse_topology(body);
    (void)parse_rank(body);
    (void)parse_room_query(body);
    (void)parse_room_ranks(body);
  }
}

}  // namespace
}  // namespace kvmend::bootstrap
