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
  static constexpr std::uint64_t kTokenBytes = Pools::kPageBytes / 16;

  /// Every token of the room as it lies at both ends; decode holds those with t % ranks == rank.
  void expect_tokens(std::span<const std::uint32_t> from, std::span<const std::uint32_t> to,
                     std::uint32_t ranks = 1, std::uint32_t rank = 0) {
    const std::uint32_t here = prefill->pools.layout.page_tokens;
    const std::uint32_t there = decode->pools.layout.page_tokens;
    const auto tokens =
        static_cast<std::uint32_t>(std::min(from.size() * here, to.size() * there * ranks));
    for (std::size_t buffer = 0; buffer < 4; ++buffer)
      for (std::uint32_t t = rank; t < tokens; t += ranks) {
        const std::uint32_t local = t / ranks;
        const Bytes sent = prefill->pools.page(0, buffer, from[t / here]);
        const Bytes got = decode->pools.page(0, buffer, to[local / there]);
        ASSERT_TRUE(std::ranges::equal(sent.subspan(t % here * kTokenBytes, kTokenBytes),
                                       got.subspan(local % there * kTokenBytes, kTokenBytes)))
            << "token " << t << " buffer " << buffer;
      }
  }
  /// The node's pages hold so many tokens from now on.
  void resize(std::unique_ptr<Node>& node, const char* at, KvRole role, std::uint32_t tokens,
              const KvRank& rank = {}) {
    node.reset();
    node = std::make_unique<Node>(net, at, role, 7, options, kTokenBytes * tokens, rank);
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

// Pages of 16 and 24 tokens: the third begins with the second.
TEST_F(PageSizes, NeitherDividesTheOther) {
  resize(decode, kDecodeAt, KvRole::kDecode, 24);
  for (const std::size_t count : {3U, 4U}) {  // the last page of prefill's may hold few tokens
    const RoomId room(count);
    KvReceiver receiver(*decode->manager, kPrefillAt, room);
    const std::vector<std::uint32_t> all{7, 8, 2, 20};
    const auto pages = std::span(all).first(count);
    ASSERT_TRUE(receiver.send_metadata(pages, kTargetRow, {{2}}).is_ok());
    KvSender sender(*prefill->manager, room);
    send_all(sender);
    net.loop.settle();
    ASSERT_EQ(receiver.poll(), KvStatus::kSuccess) << why(receiver.failure());
    EXPECT_EQ(sender.poll(), KvStatus::kSuccess);
    expect_tokens(source, pages);
  }
  expect_clean();
}

TEST_F(PageSizes, TokensAreDealtOutToPagesOfAnotherSize) {
  for (const std::uint32_t tokens : {4U, 8U, 12U, 32U})
    for (const std::uint32_t rank : {0U, 1U}) {
      resize(decode, kDecodeAt, KvRole::kDecode, tokens, {.dcp_rank = rank, .dcp_size = 2});
      KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
      const std::size_t needed = (source.size() * 16 + tokens * 2 - 1) / (tokens * 2);
      std::vector<std::uint32_t> pages(needed);
      std::iota(pages.begin(), pages.end(), 5U);
      std::ranges::reverse(pages);
      ASSERT_TRUE(receiver.send_metadata(pages, kTargetRow, {{2}}).is_ok());
      KvSender sender(*prefill->manager, kRoom);
      send_all(sender);
      net.loop.settle();
      ASSERT_EQ(receiver.poll(), KvStatus::kSuccess) << tokens << why(receiver.failure());
      EXPECT_EQ(sender.poll(), KvStatus::kSuccess);
      expect_tokens(source, pages, 2, rank);
      expect_clean();
    }
}

// Case I6: a plan has a table of where the pages of both sides begin; absurd sizes are refused.
TEST_F(PageSizes, I6_SizesThatHardlyEverMeetAreRefusedWithBoth) {
  resize(decode, kDecodeAt, KvRole::kDecode, 4'099);
  KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
  announce(receiver);
  net.loop.settle();
  EXPECT_EQ(receiver.failure().code(), Code::kIncompatible);
  EXPECT_THAT(receiver.failure().detail(), HasSubstr("page_tokens 16 here, 4099 there"));
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
