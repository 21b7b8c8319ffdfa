#include "wire/text.h"

#include <gtest/gtest.h>

namespace kvmend::wire {
namespace {

TEST(CleanText, KeepsValidText) {
  EXPECT_EQ(clean_text("pages ok, größer, 写, 🙂", 100), "pages ok, größer, 写, 🙂");
}

TEST(CleanText, ReplacesControlsAndBrokenSequences) {
  EXPECT_EQ(clean_text("a\nb\x1B[31m\x7F", 100), "a?b?[31m?");
  EXPECT_EQ(clean_text("\xC2\x85\xC3\xBC", 100), "?ü");         // a C1 control
  EXPECT_EQ(clean_text("\xC0\x80\xFF\xE2\x82", 100), "?????");  // overlong, invalid, cut short
  EXPECT_EQ(clean_text("\xED\xA0\x80", 100), "???");            // a surrogate
}

TEST(CleanText, CutsBetweenCharacters) {
  EXPECT_EQ(clean_text("aü", 2), "a");
  EXPECT_EQ(clean_text("aü", 3), "aü");
  EXPECT_EQ(clean_text("abc", 0), "");
}

}  // namespace
}  // namespace kvmend::wire
