// Rooms between pools whose pages hold different numbers of tokens.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>

#include "kv/fake_cluster.h"

namespace kvmend::kv {
namespace {

using ::testing::HasSubstr;

class PageSizes : public Cluster {
 protected:
  /// The node's pages hold so many tokens from now on.
  void resize(std::unique_ptr<Node>& node, const char* at, KvRole role, std::uint32_t tokens) {
    node.reset();
    node = std::make_unique<Node>(net, at, role, 7, options, Pools::kPageBytes * tokens / 16);
    node->manager->teardown();
    node->pools.layout.page_tokens = tokens;
    node->manager = node->open(net, role, options);
    net.loop.settle();
  }
};

TEST_F(PageSizes, TwoPagesOfPrefillFillOneOfDecodes) {
  resize(decode, kDecodeAt, KvRole::kDecode, 32);
  KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
  const std::vector<std::uint32_t> pages{7, 8, 2};
  ASSERT_TRUE(receiver.send_metadata(pages, kTargetRow, {{2}}).is_ok());
  KvSender sender(*prefill->manager, kRoom);
  send_all(sender);
  net.loop.settle();
  ASSERT_EQ(receiver.poll(), KvStatus::kSuccess) << why(receiver.failure());
  EXPECT_EQ(sender.poll(), KvStatus::kSuccess);
  for (std::size_t i = 0; i < source.size(); ++i)
    for (std::size_t buffer = 0; buffer < 4; ++buffer) {
      const Bytes here = prefill->pools.page(0, buffer, source[i]);
      const Bytes there = decode->pools.page(0, buffer, pages[i / 2]).subspan(i % 2 * 96, 96);
      EXPECT_TRUE(std::ranges::equal(here, there)) << i << "/" << buffer;
    }
  expect_clean();
}

TEST_F(PageSizes, OnePageOfPrefillFillsSeveralOfDecodes) {
  resize(prefill, kPrefillAt, KvRole::kPrefill, 64);
  KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
  const std::vector<std::uint32_t> pages{7, 8, 2, 20, 21, 9};  // the last two hold no tokens
  ASSERT_TRUE(receiver.send_metadata(pages, kTargetRow, {{2}}).is_ok());
  KvSender sender(*prefill->manager, kRoom);
  ASSERT_TRUE(sender.init(2, kSourceRow).is_ok());
  const std::vector<std::uint32_t> own{5, 3};
  ASSERT_TRUE(sender.send(own, {{5}}).is_ok());
  net.loop.settle();
  ASSERT_EQ(receiver.poll(), KvStatus::kSuccess) << why(receiver.failure());
  for (std::size_t i = 0; i < pages.size(); ++i) {
    const Bytes here = prefill->pools.page(0, 1, own[i / 4]).subspan(i % 4 * 96, 96);
    EXPECT_TRUE(std::ranges::equal(here, decode->pools.page(0, 1, pages[i]))) << i;
  }
  expect_clean();
}

TEST_F(PageSizes, OtherNumbersOfPagesAreRefusedWithBoth) {
  resize(prefill, kPrefillAt, KvRole::kPrefill, 64);
  for (const std::size_t count : {4U, 9U}) {  // of 5 to 8
    KvReceiver receiver(*decode->manager, kPrefillAt, RoomId(count));
    std::vector<std::uint32_t> pages(count);
    std::iota(pages.begin(), pages.end(), 0U);
    ASSERT_TRUE(receiver.send_metadata(pages).is_ok());
    KvSender sender(*prefill->manager, RoomId(count));
    ASSERT_TRUE(sender.init(2).is_ok());
    net.loop.settle();
    EXPECT_THAT(receiver.failure().detail(),
                HasSubstr(fmt::format("announced {} kv pages, prefill sends 2", count)));
    EXPECT_FALSE(sender.failure().is_ok());
  }
  expect_clean();
}

TEST_F(PageSizes, TokensThatDecodeHasMustEndWithTheLargerPage) {
  resize(decode, kDecodeAt, KvRole::kDecode, 32);
  for (const std::uint64_t prefix : {16U, 32U}) {
    KvReceiver receiver(*decode->manager, kPrefillAt, RoomId(prefix));
    const std::vector<std::uint32_t> pages{7, 8, 2};
    ASSERT_TRUE(receiver.send_metadata(pages, kTargetRow, {{2}}, prefix).is_ok());
    KvSender sender(*prefill->manager, RoomId(prefix));
    send_all(sender);
    net.loop.settle();
    if (prefix == 32) {
      EXPECT_EQ(receiver.poll(), KvStatus::kSuccess) << why(receiver.failure());
    } else {
      EXPECT_THAT(receiver.failure().detail(),
                  HasSubstr("prefix_tokens 16 isn't a multiple of 32"));
      sender.clear();
    }
  }
}

}  // namespace
}  // namespace kvmend::kv
