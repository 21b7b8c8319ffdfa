// Words of strangers, and words that are only repeated.
#include <gtest/gtest.h>

#include <optional>
#include <set>
#include <string>

#include "kv/fake_cluster.h"

namespace kvmend::kv {
namespace {

using namespace std::chrono_literals;

class Hints : public Cluster {};

// Anyone who can connect can register in decode's name: rooms end only when another process has
// answered at its address.
TEST_F(Hints, ARegistrationInAPeersNameEndsNoRoom) {
  std::optional<wire::KvRegister> registration;
  net.lost = [&](const std::string&, const wire::KvMessage& message) {
    if (const auto* one = std::get_if<wire::KvRegister>(&message)) registration = *one;
    return false;
  };
  net.hold_writes = true;
  KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
  announce(receiver);
  KvSender sender(*prefill->manager, kRoom);
  send_all(sender);
  net.loop.settle();
  ASSERT_TRUE(registration);
  ++registration->registration;
  const FakeEngine stranger(net, kDecodeAt, Incarnation(77));
  net.inject(stranger, prefill->engine, *registration);
  net.loop.settle();
  EXPECT_FALSE(is_terminal(sender.poll())) << why(sender.failure());
  EXPECT_EQ(prefill->engine.registered.back(), stranger.incarnation) << "the engine is to ask";
  net.hold_writes = false;
  while (net.land_next()) net.loop.settle();
  EXPECT_EQ(sender.poll(), KvStatus::kSuccess) << why(sender.failure());
  EXPECT_EQ(receiver.poll(), KvStatus::kSuccess) << why(receiver.failure());
  expect_landed();
  // It was true: the registration that waited counts as soon as the process is seen there.
  const std::uint64_t answers = prefill->engine.messages_sent;
  prefill->engine.observer->on_peer_incarnation(kDecodeAt, decode->engine.incarnation,
                                                stranger.incarnation);
  net.loop.settle();
  EXPECT_EQ(prefill->engine.messages_sent, answers + 1) << "the registration is answered";
}

// Decode repeats its registration until it is answered. Each repetition would lift prefill's
// blacklist of a session that can't be reached. (kvmend-sim --scenario kv_storm --seed 553)
TEST_F(Hints, ARepeatedRegistrationIsNoNews) {
  std::optional<wire::KvRegister> registration;
  net.lost = [&](const std::string&, const wire::KvMessage& message) {
    if (const auto* one = std::get_if<wire::KvRegister>(&message)) registration = *one;
    return false;
  };
  KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
  announce(receiver);
  net.loop.settle();
  ASSERT_TRUE(registration);
  const std::size_t told = prefill->engine.registered.size();
  EXPECT_EQ(told, 1U);
  const std::uint64_t answers = prefill->engine.messages_sent;
  net.inject(decode->engine, prefill->engine, *registration);
  net.loop.settle();
  EXPECT_EQ(prefill->engine.messages_sent, answers + 1) << "it is answered again";
  EXPECT_EQ(prefill->engine.registered.size(), told);
  ++registration->registration;  // a manager of its own in the same process
  net.inject(decode->engine, prefill->engine, *registration);
  net.loop.settle();
  EXPECT_EQ(prefill->engine.registered.size(), told + 1);
}

// What waits in the outbox of a peer that takes nothing is replaced by its repetition.
TEST_F(Hints, ARepeatedRoomMessageSaysThatItIsOne) {
  KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
  announce(receiver);
  net.loop.settle();
  KvReceiver other(*decode->manager, kPrefillAt, RoomId(5));
  announce(other);
  net.lost = [](const std::string&, const wire::KvMessage&) { return true; };
  net.loop.settle();
  const std::size_t first = decode->engine.keys_sent.size();
  net.loop.advance(30s);
  const std::vector<std::string>& keys = decode->engine.keys_sent;
  EXPECT_GT(keys.size(), first + 2);
  const std::set<std::string> before(keys.begin(),
                                     keys.begin() + static_cast<std::ptrdiff_t>(first));
  EXPECT_GE(before.size(), 3U) << "a registration and two rooms";
  for (std::size_t i = first; i < keys.size(); ++i) EXPECT_TRUE(before.contains(keys[i])) << i;
}

}  // namespace
}  // namespace kvmend::kv
