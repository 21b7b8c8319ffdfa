#include "wire/kv_messages.h"

#include <gtest/gtest.h>

#include <numeric>

#include "wire/control.pb.h"

namespace kvmend::wire {
namespace {

Bytes bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

KvComponent some_component() {
  return {.kind = 0,
          .regions = {{1, 2}, {0xFFFF'FFFF, 0xFFFF'FFFF}},
          .item_len = {4096},
          .items = 1000,
          .layer_ids = {0, 1},
          .dtype = "bfloat16",
          .base_offset = {0, 1ULL << 40}};
}

// With everything that describes the inside of pages.
KvComponent elided_component() {
  return {.kind = 2,
          .regions = {{1, 2}, {}, {3, 1}},
          .item_len = {4096, 0, 64},
          .items = 10,
          .shapes = {{.rows = 4, .columns = 8, .total_columns = 16, .groups = {6, 10}},
                     {.columns_first = true}},
          .shape_of = {0, 1, 1},
          .optional = {1, 2},
          .memory = 1};
}

KvComponent named_component() {
  return {.kind = 1,
          .regions = {{1, 2}, {4, 2}},
          .item_len = {16, 4},
          .items = 10,
          .fields = {{.name = "token", .bytes = 4, .dtype = "int32", .required = true},
                     {.name = "größe", .buffer = 1, .offset = 2, .bytes = 2}},
          .fields_version = 7};
}

TEST(KvMessages, EveryKindComesBackAsItWas) {
  const RoomId room{kMaxRoomId};
  const std::vector<KvMessage> all = {
      KvRegister{.registration = 3,
                 .layout = {.page_tokens = 16,
                            .kv_heads = 8,
                            .head_dim = 128,
                            .element_order = "nhd",
                            .rank = {.tp_rank = 1,
                                     .tp_size = 2,
                                     .pp_rank = 3,
                                     .pp_size = 4,
                                     .dp_rank = 5,
                                     .dp_size = 6,
                                     .cp_rank = 7,
                                     .cp_size = 8,
                                     .dcp_rank = 2,
                                     .dcp_size = 3},
                            .components = {some_component(), elided_component(), named_component()},
                            .total_kv_heads = 32,
                            .share = 2,
                            .version = kKvLayoutVersion},
                 .data_session = "10.0.0.5:15002"},
      KvRegisterReply{
          .registration = 3,
          .coverage = {{.bytes = {512, 0, 64}, .elided = {1}, .divisor = 2, .token_ranks = 4},
                       {},
                       {.bytes = {6}, .fields = {0, 255}, .split = 4}}},
      KvRegisterReply{
          .registration = 3, .code = Code::kIncompatible, .detail = "head_dim 64 ≠ 128"},
      KvRoomMetadata{.room = room,
                     .attempt = 2,
                     .grant = GrantId{~0ULL},
                     .expires_in = std::chrono::milliseconds{60'000},
                     .pages = {{.component = 0, .pages = {5, 3, 0xFFFF'FFFF}}, {.component = 31}},
                     .prefix_tokens = 1ULL << 33,
                     .required_destinations = 4},
      KvRoomMetadata{.room = room, .attempt = 3, .required_destinations = 2, .dummy = true},
      KvRoomDone{.room = room,
                 .attempt = 1,
                 .grant = GrantId{8},
                 .declared_bytes = {~0ULL, 0},
                 .declared_pages = 9},
      KvRoomStatus{.room = room,
                   .attempt = 1,
                   .status = 4,
                   .code = Code::kAborted,
                   .reason = "r",
                   .rank = 3,
                   .grant = GrantId{8}},
      KvRoomAbort{
          .room = room, .attempt = 1, .code = Code::kPeerRestarted, .reason = "r", .rank = 3},
      KvRoomAbortAck{.room = room, .attempt = 1, .rank = 3},
      KvRoomAbortAck{.room = room, .attempt = 1, .undrained = true},
  };
  for (const KvMessage& message : all) {
    const auto parsed = parse_kv(bytes_of(encode_kv(message)));
    ASSERT_TRUE(parsed) << message.index() << ' ' << parsed.error().to_string();
    EXPECT_EQ(*parsed, message);
  }
}

TEST(KvMessages, AMillionPagesFitOneMessage) {
  KvPages pages{.component = 0, .pages = std::vector<std::uint32_t>(kMaxKvPages)};
  std::iota(pages.pages.begin(), pages.pages.end(), 0U);
  const KvMessage message =
      KvRoomMetadata{.room = RoomId{1}, .grant = GrantId{2}, .pages = {std::move(pages)}};
  EXPECT_EQ(*parse_kv(bytes_of(encode_kv(message))), message);
}

// Identities cut short have mixed up rooms elsewhere: all 63 bits count, and a 64th is an error.
TEST(KvMessages, RoomIdsAreNeverCut) {
  pb::KvMessage message;
  message.mutable_abort()->set_room(kMaxRoomId + 1);
  EXPECT_EQ(parse_kv(bytes_of(message.SerializeAsString())).error().code(), Code::kProtocolError);
}

TEST(KvMessages, RefusesWhatMakesNoSense) {
  const auto metadata_refused = [](auto&& change) {
    pb::KvMessage message;
    message.mutable_metadata()->set_grant(9);
    change(*message.mutable_metadata());
    return !parse_kv(bytes_of(message.SerializeAsString()));
  };
  EXPECT_FALSE(metadata_refused([](auto&) {}));
  EXPECT_TRUE(metadata_refused([](auto& m) { m.set_grant(0); }));
  EXPECT_TRUE(metadata_refused([](auto& m) { m.set_grant(1); }));
  EXPECT_TRUE(metadata_refused([](auto& m) { m.set_dummy(true); }));
  EXPECT_FALSE(metadata_refused([](auto& m) { m.set_dummy(true), m.set_grant(0); }));
  EXPECT_TRUE(metadata_refused([](auto& m) { m.set_dummy(true), m.set_grant(0), m.add_pages(); }));
  EXPECT_TRUE(metadata_refused([](auto& m) { m.set_required_destinations(257); }));
  EXPECT_TRUE(metadata_refused([](auto& m) { m.set_expires_in_ms(~0ULL); }));
  EXPECT_TRUE(metadata_refused([](auto& m) { m.add_pages()->set_pages("abc"); }));
  EXPECT_TRUE(metadata_refused([](auto& m) { m.add_pages()->set_component(32); }));
  EXPECT_TRUE(metadata_refused([](auto& m) { m.add_pages(), m.add_pages(); }));
  EXPECT_TRUE(metadata_refused([](auto& m) {
    for (std::uint32_t i = 0; i < 33; ++i) m.add_pages()->set_component(i % 32);
  }));

  const auto component_refused = [](auto&& change) {
    KvRegister message{.layout = {.components = {elided_component(), some_component()}}};
    change(message.layout.components[1]);
    return !parse_kv(bytes_of(encode_kv(message)));
  };
  EXPECT_FALSE(component_refused([](auto&) {}));
  const auto field_refused = [](auto&& change) {
    KvRegister message{.layout = {.components = {named_component()}}};
    change(message.layout.components[0].fields);
    return !parse_kv(bytes_of(encode_kv(message)));
  };
  EXPECT_FALSE(field_refused([](auto&) {}));
  EXPECT_TRUE(field_refused([](auto& f) { f[0].name.clear(); }));
  EXPECT_TRUE(field_refused([](auto& f) { f[0].bytes = 0; }));
  EXPECT_TRUE(field_refused([](auto& f) { f[0].bytes = 17; }));
  EXPECT_TRUE(field_refused([](auto& f) { f[0].offset = 13; }));
  EXPECT_TRUE(field_refused([](auto& f) { f[0].offset = ~0ULL; }));
  EXPECT_TRUE(field_refused([](auto& f) { f[0].buffer = 2; }));
  pb::KvMessage many;
  for (std::size_t i = 0; i <= kMaxKvFields; ++i)
    (i == 0 ? many.mutable_register_()->mutable_layout()->add_components()
            : many.mutable_register_()->mutable_layout()->mutable_components(0))
        ->add_fields();
  EXPECT_FALSE(parse_kv(bytes_of(many.SerializeAsString())));
  EXPECT_TRUE(component_refused([](auto& c) { c.regions.clear(); }));
  EXPECT_TRUE(component_refused([](auto& c) { c.regions[0].generation = 0; }));
  EXPECT_TRUE(component_refused([](auto& c) { c.item_len = {1, 2, 3}; }));
  EXPECT_TRUE(component_refused([](auto& c) { c.item_len = {0}; }));
  EXPECT_TRUE(component_refused([](auto& c) { c.layer_ids.pop_back(); }));
  EXPECT_TRUE(component_refused([](auto& c) { c.base_offset.pop_back(); }));
  EXPECT_TRUE(component_refused([](auto& c) { c.shape_of = {0, 0}; }));  // of no shapes
  EXPECT_TRUE(component_refused([](auto& c) { c.shapes = {{.rows = 0}}; }));
  EXPECT_TRUE(component_refused([](auto& c) { c.shapes = {{.columns = 0}}; }));
  EXPECT_TRUE(component_refused([](auto& c) { c.shapes = {{.total_columns = ~0U}}; }));
  EXPECT_TRUE(
      component_refused([](auto& c) { c.shapes = {{.total_columns = 4, .groups = {1, 2}}}; }));
  EXPECT_TRUE(component_refused([](auto& c) { c.optional = {1, 0}; }));
  EXPECT_TRUE(component_refused([](auto& c) { c.optional = {0, 0}; }));
  EXPECT_TRUE(component_refused([](auto& c) { c.optional = {2}; }));
  const auto layout_refused = [](auto&& change) {
    KvRegister message{.layout = {.components = {some_component()}}};
    change(message.layout);
    return !parse_kv(bytes_of(encode_kv(message)));
  };
  EXPECT_FALSE(layout_refused([](auto&) {}));
  EXPECT_TRUE(layout_refused([](auto& l) { l.rank.tp_rank = 1; }));
  EXPECT_TRUE(layout_refused([](auto& l) { l.rank.dcp_size = 0; }));
  EXPECT_TRUE(layout_refused([](auto& l) { l.rank.pp_size = ~0U; }));
  EXPECT_TRUE(layout_refused([](auto& l) { l.page_tokens = ~0U; }));
  EXPECT_TRUE(layout_refused([](auto& l) { l.total_kv_heads = ~0U; }));
  EXPECT_TRUE(layout_refused([](auto& l) {
    l.rank.tp_size = kMaxKvRanks;
    l.kv_heads = 1U << 16;  // together 2^32
  }));
  const auto reply_refused = [](KvCoverage coverage) {
    return !parse_kv(bytes_of(encode_kv(KvRegisterReply{.coverage = {std::move(coverage)}})));
  };
  EXPECT_FALSE(reply_refused({}));
  EXPECT_TRUE(reply_refused({.divisor = 0}));
  EXPECT_TRUE(reply_refused({.token_ranks = 0}));
  EXPECT_TRUE(reply_refused({.elided = {3, 3}}));
  EXPECT_FALSE(reply_refused({.join = 3, .split = 4}));
  EXPECT_TRUE(reply_refused({.join = 0}));
  EXPECT_TRUE(reply_refused({.join = 6, .split = 4}));
  EXPECT_TRUE(reply_refused({.join = kMaxKvPageSteps}));
  EXPECT_TRUE(reply_refused({.elided = {kMaxKvBuffers}}));

  EXPECT_TRUE(parse_kv(bytes_of(encode_kv(KvRoomStatus{.status = 4}))));
  EXPECT_FALSE(parse_kv(bytes_of(encode_kv(KvRoomStatus{.status = 5}))));
  EXPECT_FALSE(parse_kv({}));
}

}  // namespace
}  // namespace kvmend::wire
