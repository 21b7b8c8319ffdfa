#include "base/address.h"

#include <gtest/gtest.h>

namespace kvmend {
namespace {

TEST(Address, ReadsBothFamiliesAndWritesThemBack) {
  for (const char* text : {"127.0.0.1:7001", "[::1]:7001", "[fe80::1]:65535"})
    EXPECT_EQ(parse_address(text)->to_string(), text);
  EXPECT_EQ(parse_address("localhost:80")->to_string(), "127.0.0.1:80");
}

TEST(Address, OneAddressHasOneText) {
  EXPECT_EQ(parse_address("[0:0::1]:7")->to_string(), "[::1]:7");
  EXPECT_EQ(parse_address("[FE80:0::A]:7")->to_string(), "[fe80::a]:7");
}

// Case B5: `::1` bare as well as bracketed.
TEST(Address, B5_TakesABareIpv6HostWithADefaultPort) {
  EXPECT_EQ(parse_address("::1", 8998)->to_string(), "[::1]:8998");
  EXPECT_EQ(parse_address("[::1]", 8998)->to_string(), "[::1]:8998");
  EXPECT_FALSE(parse_address("::1").has_value());
}

TEST(Address, RefusesNonsenseAndNamesIt) {
  for (const char* text : {"", "127.0.0.1", "127.0.0.1:", "127.0.0.1:70000", "127.0.0.1:8x", "[::1",
                           "[::1]x", "[::1]:", "no such host:1", "1.2.3:4"}) {
    const auto result = parse_address(text);
    ASSERT_FALSE(result.has_value()) << text;
    EXPECT_EQ(result.error().code(), Code::kInvalidArgument);
    EXPECT_NE(result.error().detail().find(text), std::string::npos);
  }
}

TEST(Address, HostPrefixesDontMatch) {
  EXPECT_NE(*parse_address("10.0.0.1:80"), *parse_address("10.0.0.1:8000"));
}

}  // namespace
}  // namespace kvmend
