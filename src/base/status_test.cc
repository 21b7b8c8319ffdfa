#include "kvmend/status.h"

#include <gtest/gtest.h>

#include <set>

namespace kvmend {
namespace {

TEST(Status, EveryCodeHasItsOwnNameAndSurvivesTheWire) {
  std::set<std::string_view> names;
  for (std::uint32_t n = 0; n <= static_cast<std::uint32_t>(Code::kInternal); ++n) {
    EXPECT_EQ(static_cast<std::uint32_t>(code_from_wire(n)), n);
    names.insert(code_name(code_from_wire(n)));
  }
  EXPECT_EQ(names.size(), static_cast<std::size_t>(Code::kInternal) + 1);
}

TEST(Status, UnknownNumbersFromAPeerBecomeInternal) {
  EXPECT_EQ(code_from_wire(999), Code::kInternal);
  EXPECT_EQ(code_from_wire(0xffffffffU), Code::kInternal);
}

TEST(Status, TextNamesCodeOriginDetailAndErrno) {
  const Status status(Code::kConnectionRefused, Origin::kPeer, "connect to 127.0.0.1:1", 111);
  EXPECT_EQ(status.to_string(),
            "connection_refused (peer): connect to 127.0.0.1:1 [errno 111: Connection refused]");
  EXPECT_EQ(Status::ok().to_string(), "ok");
}

TEST(Status, CallerMistakesAreNeverRetryable) {
  EXPECT_FALSE(is_retryable(Code::kInvalidArgument));
  EXPECT_FALSE(is_retryable(Code::kPeerRestarted));
  EXPECT_TRUE(is_retryable(Code::kConnectionReset));
}

}  // namespace
}  // namespace kvmend
