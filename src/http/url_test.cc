#include "http/url.h"

#include <gtest/gtest.h>

namespace kvmend::http {
namespace {

TEST(Target, SplitsAndDecodes) {
  const auto target = parse_target("/a%20b/c?x=1&y=p+q%2B&flag&&z=");
  ASSERT_TRUE(target.has_value());
  EXPECT_EQ(target->path, "/a b/c");
  const std::vector<Field> want{{"x", "1"}, {"y", "p q+"}, {"flag", ""}, {"z", ""}};
  EXPECT_EQ(target->query, want);
  EXPECT_EQ(parse_target("/%41")->path, "/A");
}

TEST(Target, RefusesWhatIsBroken) {
  for (const char* text : {"", "route", "/%", "/%4", "/%zz", "/a?b=%0", "/%00", "/a?b=%0d%0a"})
    EXPECT_FALSE(parse_target(text).has_value()) << text;
  EXPECT_FALSE(parse_target("/" + std::string(9'000, 'a')).has_value());
  std::string many = "/?";
  for (int i = 0; i < 65; ++i) many += "a=1&";
  EXPECT_FALSE(parse_target(many).has_value());
}

TEST(Url, SplitsAndNamesWhatIsWrong) {
  const auto url = parse_url("http://[::1]:8998/route?a=1#part");
  ASSERT_TRUE(url.has_value());
  EXPECT_EQ(url->host, "::1");
  EXPECT_EQ(url->port, 8998);
  EXPECT_EQ(url->target, "/route?a=1");
  EXPECT_EQ(url->authority(), "[::1]:8998");
  EXPECT_EQ(parse_url("http://prefill-0")->authority(), "prefill-0:80");
  for (const char* text :
       {"", "x", "https://a", "http://", "http://:1", "http://a:", "http://a:0", "http://a:70000",
        "http://a:1x", "http://[::1", "http://[::1]x", "http://::1:80", "http://u@h",
        "http://a/b c", "http://a\r\n/", "http://[[]", "http://[a]", "http://[:"}) {
    const auto bad = parse_url(text);
    ASSERT_FALSE(bad.has_value()) << text;
    EXPECT_EQ(bad.error().code(), Code::kInvalidArgument);
    EXPECT_NE(bad.error().detail().find(text), std::string::npos);
  }
}

// Case B5: users write addresses in every form.
TEST(Url, B5_BuildsABaseFromWhatUsersWrite) {
  EXPECT_EQ(*base_url("127.0.0.1:7000", 8998), "http://127.0.0.1:7000");
  EXPECT_EQ(*base_url("prefill", 8998), "http://prefill:8998");
  EXPECT_EQ(*base_url("::1", 8998), "http://[::1]:8998");
  EXPECT_EQ(*base_url("[::1]", 8998), "http://[::1]:8998");
  EXPECT_EQ(*base_url("[::1]:7", 8998), "http://[::1]:7");
  EXPECT_EQ(*base_url("http://10.0.0.1:9/", 8998), "http://10.0.0.1:9");
  EXPECT_EQ(*base_url("0.0.0.0:9", 8998), "http://127.0.0.1:9");
  EXPECT_EQ(*base_url("::", 9), "http://[::1]:9");
  EXPECT_FALSE(base_url("", 9).has_value());
}

}  // namespace
}  // namespace kvmend::http
