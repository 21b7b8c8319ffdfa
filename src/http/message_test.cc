#include "http/message.h"

#include <gtest/gtest.h>

namespace kvmend::http {
namespace {

TEST(Message, FindsHeadersWithoutRegardToCaseAndQueryExactly) {
  const Request request{.query = {{"a", "1"}, {"a", "2"}}, .headers = {{"Content-Type", "x"}}};
  EXPECT_EQ(*request.header("content-type"), "x");
  EXPECT_EQ(request.header("content"), nullptr);
  EXPECT_EQ(*request.query_value("a"), "1");
  EXPECT_EQ(request.query_value("A"), nullptr);
}

}  // namespace
}  // namespace kvmend::http
