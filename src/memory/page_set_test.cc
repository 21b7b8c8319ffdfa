#include "memory/page_set.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <set>
#include <vector>

namespace kvmend::memory {
namespace {

bool holds(const PageSet& set, std::uint32_t first, std::uint32_t last) {
  std::uint32_t hint = 0;
  return set.holds(first, last, hint);
}

TEST(PageSet, TakesWhatIsSmaller) {
  EXPECT_FALSE(PageSet({}).dense());
  EXPECT_TRUE(PageSet(std::vector<std::uint32_t>{63}).dense());
  EXPECT_FALSE(PageSet(std::vector<std::uint32_t>{64}).dense());
  EXPECT_FALSE(PageSet(std::vector<std::uint32_t>{0, 1, 2, 200}).dense());
  EXPECT_TRUE(PageSet(std::vector<std::uint32_t>{0, 2, 4, 200}).dense());
  // The memory follows the pages, not their numbers.
  EXPECT_FALSE(PageSet(std::vector<std::uint32_t>{1, 0xFFFF'FFFE}).dense());
}

TEST(PageSet, HoldsNothingBeyondItsEnds) {
  for (const std::vector<std::uint32_t>& pages :
       {std::vector<std::uint32_t>{}, {5}, {63}, {64}, {0xFFFF'FFFE}}) {
    const PageSet set(pages);
    for (const std::uint32_t page : {0U, 4U, 6U, 62U, 65U, 128U, 0xFFFF'FFFDU, 0xFFFF'FFFFU})
      EXPECT_FALSE(holds(set, page, page)) << page;
    for (const std::uint32_t page : pages) {
      EXPECT_TRUE(holds(set, page, page));
      EXPECT_FALSE(holds(set, page - 1, page));
      EXPECT_FALSE(holds(set, page, page + 1));
    }
  }
}

TEST(PageSet, SpansOfSeveralWords) {
  std::vector<std::uint32_t> pages;
  for (std::uint32_t page = 0; page < 64; ++page) pages.push_back(2 * page);
  for (std::uint32_t page = 130; page <= 330; ++page) pages.push_back(page);
  const PageSet set(pages);
  ASSERT_TRUE(set.dense());
  EXPECT_TRUE(holds(set, 130, 330));
  EXPECT_TRUE(holds(set, 191, 256));
  EXPECT_FALSE(holds(set, 129, 330));
  EXPECT_FALSE(holds(set, 130, 331));
  EXPECT_FALSE(holds(set, 126, 200));
}

// Both forms against a plain set, with hints of any value.
TEST(PageSet, AnswersAsASetDoes) {
  rc::check([] {
    const auto factor = *rc::gen::element(1U, 2U, 9U, 90U);
    const auto raw = *rc::gen::container<std::set<std::uint32_t>>(rc::gen::inRange(0U, 300U));
    std::set<std::uint32_t> model;
    for (const std::uint32_t page : raw) {
      model.insert(page * factor);
      if (page % 3 == 0) model.insert(page * factor + 1);
    }
    const std::vector<std::uint32_t> pages(model.begin(), model.end());
    const PageSet set(pages);
    RC_CLASSIFY(set.dense());
    std::uint32_t hint = *rc::gen::element(0U, 1U, 7U, 0xFFFF'FFFFU);
    for (int i = 0; i < 200; ++i) {
      const auto first = *rc::gen::inRange(0U, 301U * factor);
      const auto last = first + *rc::gen::element(0U, 0U, 1U, 2U, 70U);
      bool all = true;
      for (std::uint32_t page = first; page <= last; ++page) all = all && model.contains(page);
      RC_ASSERT(set.holds(first, last, hint) == all);
    }
  });
}

}  // namespace
}  // namespace kvmend::memory
