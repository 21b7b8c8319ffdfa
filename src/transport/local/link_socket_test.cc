#include "transport/local/link_socket.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>

namespace kvmend::transport::local {
namespace {

struct Ends {
  UniqueFd listener;
  UniqueFd a;
  UniqueFd b;
};

Ends connected(const char* tag) {
  const std::string name = fmt::format("kvmend.test.{}.{}", tag, ::getpid());
  Ends ends;
  auto listener = listen_at(name);
  EXPECT_TRUE(listener) << listener.error().to_string();
  ends.listener = std::move(*listener);
  auto a = connect_to(name);
  EXPECT_TRUE(a) << a.error().to_string();
  ends.a = std::move(*a);
  auto b = accept_from(ends.listener.get());
  EXPECT_TRUE(b.has_value());
  ends.b = std::move(*b);
  return ends;
}

TEST(LinkSocket, CarriesAMessageAndADescriptor) {
  const Ends ends = connected("carry");
  const UniqueFd memory(::memfd_create("t", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(memory.get(), 4096), 0);
  LinkMessage message;
  message.kind = LinkKind::kSegment;
  message.id = 3;
  message.a = 4096;
  message.set_address("there");
  ASSERT_TRUE(send_message(ends.a.get(), message, memory.get()));
  Received received = receive_message(ends.b.get());
  ASSERT_EQ(received.kind, Received::Kind::kMessage);
  EXPECT_EQ(received.message.kind, LinkKind::kSegment);
  EXPECT_EQ(received.message.id, 3U);
  EXPECT_EQ(received.message.a, 4096U);
  EXPECT_EQ(received.message.get_address(), "there");
  ASSERT_TRUE(received.fd.is_open());
  EXPECT_NE(received.fd.get(), memory.get());
  EXPECT_EQ(::lseek(received.fd.get(), 0, SEEK_END), 4096);
  EXPECT_EQ(receive_message(ends.b.get()).kind, Received::Kind::kNothing);
}

TEST(LinkSocket, WhatIsNoMessageCountsAsClosed) {
  const Ends ends = connected("junk");
  std::array<char, sizeof(LinkMessage)> junk{};
  ASSERT_EQ(::send(ends.a.get(), junk.data(), junk.size(), 0), static_cast<ssize_t>(junk.size()));
  EXPECT_EQ(receive_message(ends.b.get()).kind, Received::Kind::kClosed);
  ASSERT_EQ(::send(ends.a.get(), junk.data(), 3, 0), 3);
  EXPECT_EQ(receive_message(ends.b.get()).kind, Received::Kind::kClosed);
}

TEST(LinkSocket, SeesTheOtherSideGo) {
  Ends ends = connected("gone");
  ends.a.reset();
  EXPECT_EQ(receive_message(ends.b.get()).kind, Received::Kind::kClosed);
}

TEST(LinkSocket, TheKernelSaysWhoIsThere) {
  const Ends ends = connected("who");
  for (const int fd : {ends.a.get(), ends.b.get()}) {
    const auto who = credentials_of(fd);
    ASSERT_TRUE(who);
    EXPECT_EQ(who->pid, ::getpid());
    EXPECT_EQ(who->uid, ::geteuid());
  }
}

TEST(LinkSocket, NobodyListens) {
  const auto fd = connect_to("kvmend.test.nobody");
  ASSERT_FALSE(fd);
  EXPECT_EQ(fd.error().code(), Code::kUnavailable);
}

TEST(LinkSocket, ALongAddressIsCut) {
  LinkMessage message;
  message.set_address(std::string(500, 'x'));
  EXPECT_EQ(message.get_address(), std::string(message.address.size() - 1, 'x'));
}

}  // namespace
}  // namespace kvmend::transport::local
