#include "wire/control.h"

#include <gtest/gtest.h>

#include "wire/control.pb.h"
#include "wire/frame.h"

namespace kvmend::wire {
namespace {

Bytes bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

Hello some_hello() {
  return {
      .kind = LaneKind::kData,
      .incarnation = Incarnation{~0ULL},
      .session_id = "[::1]:7001",
      .target_incarnation = Incarnation{4},
      .epoch = Epoch{3},
      .token = Token{std::byte{1}, std::byte{2}},
      .lane_index = 2,
      .features = 1ULL << 63,
      .host =
          HostIdentity{
              .uid = 1000, .pid = 7, .pid_start = 99, .local_address = std::string("\0sock", 5)},
      .auth = {.scheme = 1, .payload = std::vector<std::byte>(kMaxAuthBytes)}};
}

TEST(Hello, ComesBackAsItWas) {
  const auto parsed = parse_hello(encode_hello(some_hello()));
  ASSERT_TRUE(parsed) << parsed.error().to_string();
  EXPECT_EQ(*parsed, some_hello());
  const Hello probe{.kind = LaneKind::kProbe, .incarnation = Incarnation{1}};
  EXPECT_EQ(*parse_hello(encode_hello(probe)), probe);
}

TEST(Hello, TheLargestFitsItsCap) {
  Hello hello = some_hello();
  hello.session_id = "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535";
  hello.host->local_address.assign(kMaxLocalAddressBytes, 'x');
  EXPECT_LE(encode_hello(hello).size(), kMaxHelloBytes);
}

TEST(Hello, RefusesWhatMakesNoSense) {
  const auto refused = [](auto&& change) {
    Hello hello = some_hello();
    change(hello);
    const auto result = parse_hello(encode_hello(hello));
    return !result && result.error().code() == Code::kProtocolError;
  };
  EXPECT_TRUE(refused([](Hello& h) { h.incarnation = {}; }));
  EXPECT_TRUE(refused([](Hello& h) { h.version_min = 0; }));
  EXPECT_TRUE(refused([](Hello& h) { h.version_min = 2; }));
  EXPECT_TRUE(refused([](Hello& h) { h.epoch = {}; }));
  EXPECT_TRUE(refused([](Hello& h) { h.token.reset(); }));
  EXPECT_TRUE(refused([](Hello& h) { h.kind = LaneKind::kProbe; }));
  EXPECT_TRUE(refused([](Hello& h) { h.kind = static_cast<LaneKind>(3); }));
  EXPECT_TRUE(refused([](Hello& h) { h.session_id = "nowhere"; }));
  EXPECT_TRUE(refused([](Hello& h) { h.session_id = std::string("::1\0:7001", 9); }));
  EXPECT_TRUE(refused([](Hello& h) { h.session_id = std::string("[::1\0]:7001", 11); }));
  EXPECT_TRUE(refused([](Hello& h) { h.session_id = "10.0.0.1:0"; }));
}

TEST(Hello, EnforcesTheCapsOfItsFields) {
  const auto refused = [](auto&& change) {
    const auto encoded = encode_hello(some_hello());
    pb::Hello message;
    EXPECT_TRUE(message.ParseFromArray(encoded.data(), static_cast<int>(encoded.size())));
    change(message);
    return !parse_hello(bytes_of(message.SerializeAsString()));
  };
  EXPECT_TRUE(refused([](pb::Hello& h) { h.set_token("short"); }));
  EXPECT_TRUE(refused([](pb::Hello& h) { h.set_token(std::string(17, 'x')); }));
  EXPECT_TRUE(refused([](pb::Hello& h) { h.mutable_auth()->set_payload(std::string(1025, 'x')); }));
  EXPECT_TRUE(refused([](pb::Hello& h) { h.mutable_host()->set_boot_id("x"); }));
  EXPECT_TRUE(
      refused([](pb::Hello& h) { h.mutable_host()->set_local_address(std::string(108, 'x')); }));
  EXPECT_TRUE(refused([](pb::Hello& h) { h.set_session_id(std::string(65, '1')); }));
  EXPECT_FALSE(refused([](pb::Hello&) {}));
}

TEST(HelloAck, ComesBackAsItWas) {
  const HelloAck ack{.incarnation = Incarnation{5},
                     .epoch = Epoch{1},
                     .token = Token{},
                     .scratch = Scratch{{0xFFFF'FFFF, 9}, GrantId{77}, 16'384},
                     .control_seq = 12};
  EXPECT_EQ(*parse_hello_ack(encode_hello_ack(ack)), ack);
  HelloAck bad = ack;
  bad.version = kVersionMax + 1;
  EXPECT_FALSE(parse_hello_ack(encode_hello_ack(bad)));
  bad = ack;
  bad.scratch->bytes = kMaxScratchBytes + 1;
  EXPECT_FALSE(parse_hello_ack(encode_hello_ack(bad)));
  bad = ack;
  bad.control_seq = ~0ULL;  // the next message's number would be 0: unreliable
  EXPECT_FALSE(parse_hello_ack(encode_hello_ack(bad)));
}

TEST(HelloReject, ComesBackCutAndClean) {
  const HelloReject reject{.code = Code::kStaleEpoch,
                           .message = std::string(300, 'x') + "\n",
                           .incarnation = Incarnation{5},
                           .epoch_seen = Epoch{9}};
  const auto parsed = parse_hello_reject(encode_hello_reject(reject));
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->message, std::string(kMaxReasonBytes, 'x'));
  EXPECT_EQ(parsed->epoch_seen, Epoch{9});
  EXPECT_FALSE(
      parse_hello_reject(encode_hello_reject({.code = Code::kOk, .incarnation = Incarnation{5}})));
}

TEST(Control, EveryKindComesBackAsItWas) {
  const std::vector<Control> all = {
      RegionTablePart{
          .version = 4, .more = true, .added = {{{1, 2}, 0x1000, 0x100, Access::kReadWrite}}},
      RegionTablePart{.version = 4, .first = true},
      RegionTableRequest{},
      Notify{.name = std::string("\0n", 2), .message = std::string(kMaxNotifyBytes, '\xFF')},
      Goodbye{"draining"},
      Upper{.kind = 1, .body = std::string(kMaxUpperBytes, 'b')},
  };
  for (const Control& control : all) {
    const auto encoded = encode_control(control);
    EXPECT_LE(encoded.size(), kMaxControlBytes);
    const auto parsed = parse_control(encoded);
    ASSERT_TRUE(parsed) << control.index() << ' ' << parsed.error().to_string();
    EXPECT_EQ(*parsed, control);
  }
}

TEST(Control, RefusesRegionsThatMakeNoSense) {
  for (const RegionEntry& bad :
       {RegionEntry{{1, 0}, 0x1000, 1, Access::kNone},
        RegionEntry{{1, 1}, 0x1000, 0, Access::kNone}, RegionEntry{{1, 1}, ~0ULL, 2, Access::kNone},
        RegionEntry{{1, 1}, 0x1000, 1, static_cast<Access>(4)}})
    EXPECT_FALSE(parse_control(encode_control(RegionTablePart{.added = {bad}})));
}

TEST(Control, RefusesNonsense) {
  EXPECT_FALSE(parse_control({}));
  EXPECT_FALSE(parse_control(bytes_of("\x0A\x05")));
  EXPECT_FALSE(parse_control(bytes_of("\x0B")));  // a group
  EXPECT_FALSE(parse_control(bytes_of("\x32")));  // length missing
}

// A megabyte of empty regions would become fifty in memory: refused on the bytes.
TEST(Control, CountsBeforeItParses) {
  std::string table;
  for (std::size_t i = 0; i <= kMaxRegionsPerMessage; ++i) table += std::string("\x22\0", 2);
  std::string message = "\x0A";
  message += static_cast<char>((table.size() & 0x7F) | 0x80);
  message += static_cast<char>(table.size() >> 7);
  message += table;
  const auto result = parse_control(bytes_of(message));
  ASSERT_FALSE(result);
  EXPECT_NE(result.error().detail().find("more than 4096 of field 4"), std::string::npos);
  // Nor in two halves, which the parser would merge.
  const std::string half("\x0A\x02\x22\0", 4);
  EXPECT_NE(parse_control(bytes_of(half + half)).error().detail().find("more than 1 of field 1"),
            std::string::npos);
}

TEST(Version, TakesTheHighestCommonOne) {
  EXPECT_EQ(*negotiate_version(1, 1), 1U);
  EXPECT_EQ(*negotiate_version(1, 9), kVersionMax);
  EXPECT_EQ(negotiate_version(kVersionMax + 1, kVersionMax + 1).error().code(),
            Code::kVersionMismatch);
  EXPECT_FALSE(negotiate_version(2, 1));
}

}  // namespace
}  // namespace kvmend::wire
