#include "base/contain.h"

#include <gtest/gtest.h>

#include <new>
#include <stdexcept>

namespace kvmend {
namespace {

TEST(Contain, CountsWhatItCatchesAndSaysSo) {
  const std::uint64_t before = contained_exceptions();
  EXPECT_TRUE(contain("work", [] {}));
  EXPECT_EQ(contained_exceptions(), before);
  EXPECT_FALSE(contain("work", [] { throw std::bad_alloc(); }));
  EXPECT_FALSE(contain("work", [] { throw std::runtime_error("x"); }));
  EXPECT_FALSE(contain("work", [] { throw 1; }));
  EXPECT_EQ(contained_exceptions(), before + 3);
}

}  // namespace
}  // namespace kvmend
