// Managers whose pages somebody else's engine moves. The test plays the threads that call it.
#include <gmock/gmock.h>

#include <set>

#include "kv/fake_cluster.h"
#include "kv/foreign_blacklist.h"
#include "kv/foreign_port.h"

namespace kvmend::kv {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

const Status kBroken{Code::kUnavailable, Origin::kPeer, "returned -1"};

Time at(Duration since) {
  return Time{1000s} + since;
}

// ------------------------------------------------------------------------------ the blacklist

class ForeignBlacklistTest : public ::testing::Test {
 protected:
  ForeignOptions options{
      .session_id = "here:1", .probe_interval = 1s, .probe_max_interval = 4s, .idle_timeout = 60s};
  ForeignBlacklist list{options};
};

TEST_F(ForeignBlacklistTest, OneFailureBlacklistsAndAPassedProbeLetsOneWriteTry) {
  list.on_write_failed("a", kBroken, at(0s));
  EXPECT_TRUE(list.blacklisted("a"));
  EXPECT_EQ(list.next_due(), at(1s));
  EXPECT_TRUE(list.take_due(at(999ms)).empty());
  const auto due = list.take_due(at(1s));
  ASSERT_EQ(due.size(), 1U);
  EXPECT_TRUE(list.take_due(at(50s)).empty()) << "a probe of it runs: one at a time";
  EXPECT_TRUE(list.on_probed(due[0], 0, at(2s)));
  EXPECT_FALSE(list.blacklisted("a"));
  EXPECT_TRUE(list.on_trial("a"));
  list.on_write_ok("a");
  EXPECT_FALSE(list.on_trial("a"));
  EXPECT_EQ(list.totals().recoveries, 1U);
  EXPECT_EQ(list.next_due(), kForever);
}

TEST_F(ForeignBlacklistTest, TheIntervalDoublesUpToItsMaximum) {
  list.on_write_failed("a", kBroken, at(0s));
  Time now = at(1s);
  for (const Duration interval : {2s, 4s, 4s}) {
    const auto due = list.take_due(now);
    ASSERT_EQ(due.size(), 1U);
    EXPECT_FALSE(list.on_probed(due[0], -102, now));
    EXPECT_EQ(list.next_due(), now + interval);
    now = now + interval;
  }
}

// A failure that arrives after a probe began wins over that probe.
TEST_F(ForeignBlacklistTest, TheNewerFailureWins) {
  list.on_write_failed("a", kBroken, at(0s));
  const auto due = list.take_due(at(1s));
  list.on_write_failed("a", kBroken, at(1500ms));
  EXPECT_FALSE(list.on_probed(due.at(0), 0, at(2s)));
  EXPECT_TRUE(list.blacklisted("a"));
  EXPECT_EQ(list.totals().outdated, 1U);
  EXPECT_EQ(list.totals().recoveries, 0U);
  EXPECT_EQ(list.next_due(), at(3s)) << "asked again, without a longer interval";
}

// One that a registration has lifted meanwhile isn't the probe's recovery, nor is the next
// incident.
TEST_F(ForeignBlacklistTest, ARecoveryCountsOnlyIfItWasStillBlacklisted) {
  list.on_write_failed("a", kBroken, at(0s));
  const auto first = list.take_due(at(1s));
  EXPECT_TRUE(list.lift("a"));
  EXPECT_FALSE(list.lift("a"));
  EXPECT_FALSE(list.on_probed(first.at(0), 0, at(2s)));
  list.on_write_failed("a", kBroken, at(3s));
  EXPECT_FALSE(list.on_probed(first.at(0), 0, at(4s)));
  EXPECT_TRUE(list.blacklisted("a"));
  EXPECT_EQ(list.totals().recoveries, 0U);
}

// The probe of a control port passes though the data port is gone: each such round waits longer.
TEST_F(ForeignBlacklistTest, ARelapseIsCountedAndWaitsLonger) {
  list.on_write_failed("a", kBroken, at(0s));
  EXPECT_TRUE(list.on_probed(list.take_due(at(1s)).at(0), 0, at(1s)));
  list.on_write_failed("a", kBroken, at(2s));
  EXPECT_TRUE(list.blacklisted("a"));
  EXPECT_EQ(list.totals().relapses, 1U);
  EXPECT_EQ(list.next_due(), at(4s));
}

TEST_F(ForeignBlacklistTest, WhatNobodyWantsIsForgotten) {
  list.on_write_failed("a", kBroken, at(0s));
  list.on_write_failed("b", kBroken, at(0s));
  list.on_demand("b", at(30s));
  EXPECT_EQ(list.take_due(at(60s)).size(), 1U);
  EXPECT_FALSE(list.blacklisted("a"));
  EXPECT_TRUE(list.blacklisted("b"));
}

TEST_F(ForeignBlacklistTest, AnEngineWithoutProbesIsCountedAsThat) {
  list.on_write_failed("a", kBroken, at(0s));
  EXPECT_FALSE(list.on_probed(list.take_due(at(1s)).at(0), ForeignCalls::kUnavailable, at(1s)));
  EXPECT_EQ(list.totals().unavailable, 1U);
  EXPECT_TRUE(list.blacklisted("a"));
}

TEST_F(ForeignBlacklistTest, WithProbesOffOnlyARegistrationLifts) {
  options.probes_enabled = false;
  list.on_write_failed("a", kBroken, at(0s));
  EXPECT_TRUE(list.take_due(at(59s)).empty());
  EXPECT_TRUE(list.lift("a"));
}

// -------------------------------------------------------------------------------- the manager

constexpr auto kWrite = ForeignCall::Kind::kWrite;
constexpr auto kProbe = ForeignCall::Kind::kProbe;

/// The one-sided copy that such an engine does.
void carry_out(const ForeignCall& call) {
  for (std::size_t i = 0; i < call.lengths.size(); ++i)
    std::memcpy(reinterpret_cast<void*>(call.targets[i]),
                reinterpret_cast<const void*>(call.sources[i]), call.lengths[i]);
}

class ForeignManager : public Cluster {
 protected:
  void SetUp() override {
    prefill_calls = calls_of("10.0.0.1:15001");
    decode_calls = calls_of("10.0.0.2:15002");
    prefill->manager = open(*prefill, KvRole::kPrefill, prefill_calls);
    decode->manager = open(*decode, KvRole::kDecode, decode_calls);
  }
  std::unique_ptr<KvManager> open(Node& node, KvRole role, std::shared_ptr<ForeignCalls> calls) {
    node.manager.reset();
    auto link = Link::open(std::make_unique<ForeignPort>(net.port(node.engine), std::move(calls)),
                           role, node.pools.layout, options);
    EXPECT_TRUE(link.has_value()) << link.error().to_string();
    return std::make_unique<KvManager>(std::move(*link));
  }
  std::shared_ptr<ForeignCalls> calls_of(const char* session) {
    return std::make_shared<ForeignCalls>(ForeignOptions{.session_id = session});
  }
  /// The next call, if there is one.
  std::optional<ForeignCall> take(ForeignCall::Kind kind = kWrite) {
    net.loop.settle();
    return prefill_calls->take(kind, 0ns);
  }
  void finish(const ForeignCall& call, int rc, const char* error = "") {
    prefill_calls->finish(call.id, rc, error);
    net.loop.settle();
  }
  std::size_t carry_out_all() {
    std::size_t calls = 0;
    for (auto call = take(); call; call = take(), ++calls) {
      carry_out(*call);
      finish(*call, 0);
    }
    return calls;
  }
  void fail_all() {
    for (auto call = take(); call; call = take()) finish(*call, -1);
  }

  std::shared_ptr<ForeignCalls> prefill_calls;
  std::shared_ptr<ForeignCalls> decode_calls;
};

TEST_F(ForeignManager, PagesTravelByTheOtherEngine) {
  KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
  announce(receiver);
  KvSender sender(*prefill->manager, kRoom);
  send_all(sender);
  auto first = take();
  ASSERT_TRUE(first);
  EXPECT_EQ(first->session, "10.0.0.2:15002");
  carry_out(*first);
  finish(*first, 0);
  EXPECT_EQ(receiver.poll(), KvStatus::kTransferring);
  carry_out_all();
  EXPECT_EQ(sender.poll(), KvStatus::kSuccess) << why(sender.failure());
  EXPECT_EQ(receiver.poll(), KvStatus::kSuccess) << why(receiver.failure());
  expect_landed();
  EXPECT_EQ(prefill_calls->stats().calls_running, 0U);
}

TEST_F(ForeignManager, AFailedWriteFailsItsRoomAndTheNextOneWaitsForTheProbe) {
  KvReceiver lost_receiver(*decode->manager, kPrefillAt, RoomId(1));
  announce(lost_receiver);
  KvSender lost(*prefill->manager, RoomId(1));
  send_all(lost);
  finish(*take(), -1);
  EXPECT_THAT(why(lost.failure()), HasSubstr("write to 10.0.0.2:15002 returned -1"));
  EXPECT_THAT(why(lost_receiver.failure()), HasSubstr("returned -1"));
  EXPECT_EQ(prefill_calls->stats().blacklisted, 1U);
  EXPECT_EQ(prefill_calls->stats().undrained, 1U);
  while (auto other = take()) finish(*other, 0);  // the first room's second chunk

  KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
  announce(receiver);
  KvSender sender(*prefill->manager, kRoom);
  send_all(sender);
  EXPECT_FALSE(take()) << "it waits";
  net.loop.advance(1s);
  auto probe = take(kProbe);
  ASSERT_TRUE(probe);
  EXPECT_EQ(probe->session, "10.0.0.2:15002");
  finish(*probe, 0);
  auto trial = take();
  ASSERT_TRUE(trial);
  EXPECT_FALSE(take()) << "one at a time while on trial";
  carry_out(*trial);
  finish(*trial, 0);
  carry_out_all();
  EXPECT_EQ(sender.poll(), KvStatus::kSuccess) << why(sender.failure());
  EXPECT_EQ(receiver.poll(), KvStatus::kSuccess);
  expect_landed();
  EXPECT_EQ(prefill_calls->stats().recoveries, 1U);
  EXPECT_EQ(prefill_calls->stats().blacklisted, 0U);
}

TEST_F(ForeignManager, WhatTheOtherEngineThrowsIsAReason) {
  KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
  announce(receiver);
  KvSender sender(*prefill->manager, kRoom);
  send_all(sender);
  finish(*take(), 0, "RuntimeError: no route");
  EXPECT_THAT(why(sender.failure()), HasSubstr("RuntimeError: no route"));
  net.loop.advance(1s);
  finish(*take(kProbe), 0, "RuntimeError: still none");
  EXPECT_EQ(prefill_calls->stats().blacklisted, 1U);
  EXPECT_EQ(prefill_calls->stats().probes_unavailable, 0U);
  net.loop.advance(2s);
  EXPECT_TRUE(take(kProbe)) << "the probes go on";
}

// A session that nobody wanted for long is forgotten, and what waits there all the same may try.
TEST_F(ForeignManager, WhatWaitsForAForgottenSessionTries) {
  prefill_calls = std::make_shared<ForeignCalls>(
      ForeignOptions{.session_id = "10.0.0.1:15001", .probes_enabled = false, .idle_timeout = 5s});
  prefill->manager = open(*prefill, KvRole::kPrefill, prefill_calls);
  KvReceiver lost_receiver(*decode->manager, kPrefillAt, RoomId(1));
  announce(lost_receiver);
  KvSender lost(*prefill->manager, RoomId(1));
  send_all(lost);
  fail_all();
  KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
  announce(receiver);
  KvSender sender(*prefill->manager, kRoom);
  send_all(sender);
  EXPECT_FALSE(take());
  net.loop.advance(6s);
  EXPECT_EQ(carry_out_all(), 2U);
  EXPECT_EQ(sender.poll(), KvStatus::kSuccess) << why(sender.failure());
}

// A blocking probe holds nobody up: neither other sessions nor the end.
TEST_F(ForeignManager, AProbeThatHangsDelaysNeitherOthersNorTheEnd) {
  const auto second_calls = calls_of("10.0.0.3:15003");
  Node second(net, kOtherAt, KvRole::kDecode, 3);
  second.manager = open(second, KvRole::kDecode, second_calls);
  const auto fail_one = [&](Node& node, RoomId room) {
    KvReceiver receiver(*node.manager, kPrefillAt, room);
    announce(receiver);
    KvSender sender(*prefill->manager, room);
    send_all(sender);
    fail_all();
    EXPECT_EQ(sender.poll(), KvStatus::kFailed);
  };
  fail_one(*decode, RoomId(1));
  fail_one(second, RoomId(2));
  net.loop.advance(1s);
  auto hanging = take(kProbe);
  auto other = take(kProbe);
  ASSERT_TRUE(hanging && other) << "both at once";
  finish(*other, 0);
  EXPECT_EQ(prefill_calls->stats().recoveries, 1U);
  net.loop.advance(60s);
  EXPECT_FALSE(take(kProbe)) << "no second probe of a session beside one that runs";
  prefill->manager->teardown();
  EXPECT_TRUE(prefill_calls->closed());
  finish(*hanging, 0);  // nobody is told
}

// Case R11: of a request of two decode ranks nothing goes out while one of them is blacklisted.
class ForeignPair : public ForeignManager {
 protected:
  void SetUp() override {
    options.quarantine_share = 1;
    ForeignManager::SetUp();
    second.manager = open(second, KvRole::kDecode, second_calls);
  }
  void blacklist(Node& node, RoomId room) {
    KvReceiver receiver(*node.manager, kPrefillAt, room);
    announce(receiver);
    KvSender sender(*prefill->manager, room);
    send_all(sender);
    fail_all();
    EXPECT_EQ(sender.poll(), KvStatus::kFailed);
  }

  const std::shared_ptr<ForeignCalls> second_calls = calls_of("10.0.0.3:15003");
  Node second{net, kOtherAt, KvRole::kDecode, 3};
  const std::vector<KvSource> sources{{.session = kPrefillAt, .destinations = 2}};
};

TEST_F(ForeignPair, R11_TheWritesOfAChunkBeginTogether) {
  blacklist(*decode, RoomId(1));
  KvReceiver receiver(*decode->manager, sources, kRoom);
  KvReceiver receiver2(*second.manager, sources, kRoom);
  announce(receiver);
  announce(receiver2);
  KvSender sender(*prefill->manager, kRoom);
  send_all(sender);
  EXPECT_FALSE(take()) << "the healthy rank's writes wait as well";

  KvReceiver alone(*second.manager, kPrefillAt, RoomId(2));
  announce(alone);
  KvSender to_one(*prefill->manager, RoomId(2));
  send_all(to_one);
  EXPECT_EQ(carry_out_all(), 2U) << "and hold up nobody";
  EXPECT_EQ(to_one.poll(), KvStatus::kSuccess) << why(to_one.failure());
  to_one.clear();

  net.loop.advance(1s);
  finish(*take(kProbe), 0);
  std::set<std::string> sessions;
  std::vector<ForeignCall> first;
  while (auto call = take()) {
    sessions.insert(call->session);
    first.push_back(*call);
  }
  EXPECT_EQ(first.size(), 2U) << "one chunk while on trial";
  EXPECT_EQ(sessions, (std::set<std::string>{"10.0.0.2:15002", "10.0.0.3:15003"}));
  for (const ForeignCall& call : first) {
    carry_out(call);
    finish(call, 0);
  }
  carry_out_all();
  EXPECT_EQ(sender.poll(), KvStatus::kSuccess) << why(sender.failure());
  EXPECT_EQ(receiver2.poll(), KvStatus::kSuccess) << why(receiver2.failure());
  expect_landed();
}

TEST_F(ForeignPair, R11_IfOneEndsBeforeTheyBeganAllDoWithItsReason) {
  blacklist(*decode, RoomId(1));
  KvReceiver receiver(*decode->manager, sources, kRoom);
  KvReceiver receiver2(*second.manager, sources, kRoom);
  announce(receiver);
  announce(receiver2);
  KvSender sender(*prefill->manager, kRoom);
  send_all(sender);
  net.loop.settle();
  receiver.abort("enough");
  EXPECT_FALSE(take());
  for (const Status& why_it_failed : {sender.failure(), receiver2.failure()})
    EXPECT_THAT(why(why_it_failed), HasSubstr("enough"));
  EXPECT_TRUE(receiver2.pages_released()) << "nothing was ever written";
  net.loop.advance(1s);
  finish(*take(kProbe), 0);
  EXPECT_FALSE(take()) << "nothing is left behind";
}

TEST_F(ForeignPair, R11_BothBlacklistedEachIsWaitedFor) {
  blacklist(*decode, RoomId(1));
  blacklist(second, RoomId(2));
  KvReceiver receiver(*decode->manager, sources, kRoom);
  KvReceiver receiver2(*second.manager, sources, kRoom);
  announce(receiver);
  announce(receiver2);
  KvSender sender(*prefill->manager, kRoom);
  send_all(sender);
  net.loop.advance(1s);
  const auto one = take(kProbe);
  const auto other = take(kProbe);
  ASSERT_TRUE(one && other);
  finish(*one, 0);
  EXPECT_FALSE(take());
  finish(*other, 0);
  EXPECT_EQ(carry_out_all(), 4U);
  EXPECT_EQ(sender.poll(), KvStatus::kSuccess) << why(sender.failure());
}

// The room ends at once; what it covered is drained when the call returns well, else not.
TEST_F(ForeignManager, ACallCantBeTakenBack) {
  for (const int rc : {0, -1}) {
    KvReceiver receiver(*decode->manager, kPrefillAt, RoomId(10U - static_cast<unsigned>(rc)));
    announce(receiver);
    KvSender sender(*prefill->manager, receiver.room());
    send_all(sender);
    const auto call = take();
    ASSERT_TRUE(call);
    sender.abort("enough");
    net.loop.settle();
    EXPECT_EQ(sender.poll(), KvStatus::kFailed);
    EXPECT_EQ(receiver.poll(), KvStatus::kFailed);
    EXPECT_EQ(prefill_calls->stats().undrained, 1U);
    finish(*call, rc);
    while (auto rest = take()) finish(*rest, 0);
    EXPECT_EQ(prefill_calls->stats().undrained, rc == 0 ? 0U : 1U);
  }
}

TEST_F(ForeignManager, ANewProcessThereLiftsTheBlacklistAndEndsTheDoubt) {
  KvReceiver receiver(*decode->manager, kPrefillAt, RoomId(1));
  announce(receiver);
  KvSender sender(*prefill->manager, RoomId(1));
  send_all(sender);
  fail_all();
  EXPECT_EQ(prefill_calls->stats().blacklisted, 1U);
  EXPECT_FALSE(sender.pages_released());
  receiver.clear();
  net.loop.settle();

  decode->manager.reset();
  decode = std::make_unique<Node>(net, kDecodeAt, KvRole::kDecode, 2);
  decode->manager = open(*decode, KvRole::kDecode, decode_calls = calls_of("10.0.0.2:15002"));
  KvReceiver again(*decode->manager, kPrefillAt, kRoom);
  announce(again);
  KvSender resent(*prefill->manager, kRoom);
  send_all(resent);
  EXPECT_EQ(carry_out_all(), 2U);
  EXPECT_EQ(resent.poll(), KvStatus::kSuccess) << why(resent.failure());
  EXPECT_EQ(again.poll(), KvStatus::kSuccess);
  EXPECT_EQ(prefill_calls->stats().blacklisted, 0U);
  EXPECT_EQ(prefill_calls->stats().undrained, 0U);
  EXPECT_TRUE(sender.pages_released());
  EXPECT_EQ(prefill_calls->stats().recoveries, 0U) << "no probe did it";
}

// What a failed call may still touch is quarantined on both sides.
TEST_F(ForeignManager, PagesOfAFailedWriteAreHeldForAConfiguredTime) {
  options.quarantine_unproven_after = 5s;
  SetUp();
  KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
  announce(receiver);
  KvSender sender(*prefill->manager, kRoom);
  send_all(sender);
  fail_all();
  EXPECT_EQ(sender.poll(), KvStatus::kFailed);
  EXPECT_EQ(receiver.poll(), KvStatus::kFailed);
  net.loop.advance(60s);
  EXPECT_FALSE(sender.pages_released());
  EXPECT_FALSE(receiver.pages_released());
  net.loop.advance(6s);
  EXPECT_TRUE(sender.pages_released());
  EXPECT_TRUE(receiver.pages_released());
  for (Node* node : {prefill.get(), decode.get()})
    EXPECT_EQ(node->manager->stats().quarantine_unproven, 1U) << node->engine.session_id;
}

TEST_F(ForeignManager, ARoomThatHadNotBegunToWriteHoldsNothing) {
  KvReceiver first(*decode->manager, kPrefillAt, RoomId(1));
  announce(first);
  KvSender lost(*prefill->manager, RoomId(1));
  send_all(lost);
  fail_all();
  KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
  announce(receiver);
  KvSender parked(*prefill->manager, kRoom);
  send_all(parked);
  net.loop.settle();
  parked.abort("enough");
  net.loop.settle();
  EXPECT_EQ(receiver.poll(), KvStatus::kFailed);
  EXPECT_TRUE(parked.pages_released());
  EXPECT_TRUE(receiver.pages_released());
  EXPECT_FALSE(lost.pages_released());
}

TEST_F(ForeignManager, ManagersOverDifferentEnginesRefuseEachOther) {
  prefill->manager.reset();
  prefill->manager = prefill->open(net, KvRole::kPrefill, options);
  KvReceiver receiver(*decode->manager, kPrefillAt, kRoom);
  announce(receiver);
  net.loop.settle();
  EXPECT_EQ(receiver.failure().code(), Code::kIncompatible);
  EXPECT_THAT(why(receiver.failure()),
              HasSubstr("by kvmend's own engine, decode's by a foreign engine (10.0.0.2:15002)"));
}

// Mooncake fails a call of more than 2,048 slices, and a call can't be ended from outside.
TEST_F(ForeignManager, LargeWritesGoInSeveralCalls) {
  const auto address = parse_address(kDecodeAt);
  const Incarnation there = decode->engine.incarnation;
  const auto calls = calls_of("10.0.0.1:15009");
  ForeignPort port(net.port(prefill->engine), calls);
  port.on_data_session(*address, there, "10.0.0.2:15002");
  std::vector<std::byte> from(3'000);
  std::vector<std::byte> to(3'000);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 + 1);
  Status result{Code::kInternal, Origin::kLocal, "not called"};
  Write write{.peer = *address, .target = there, .grant = GrantId(7)};
  for (std::size_t i = 0; i < 2'500; ++i)
    write.pieces.push_back(
        {.local = &from[i], .offset = reinterpret_cast<std::uintptr_t>(&to[i]), .length = 1});
  write.on_done = [&](const Status& status, const WriteCost&) { result = status; };
  port.write(std::move(write));
  std::vector<std::size_t> sizes;
  net.loop.settle();
  while (auto call = calls->take(kWrite, 0ns)) {
    sizes.push_back(call->lengths.size());
    EXPECT_FALSE(calls->take(kWrite, 0ns)) << "one call of a write at a time";
    carry_out(*call);
    calls->finish(call->id, 0, "");
    net.loop.settle();
  }
  EXPECT_EQ(sizes, (std::vector<std::size_t>{1'024, 1'024, 452}));
  EXPECT_TRUE(result.is_ok()) << why(result);
  EXPECT_TRUE(std::equal(from.begin(), from.begin() + 2'500, to.begin()));
}

TEST_F(ForeignManager, OptionsAreChecked) {
  EXPECT_THAT(check_foreign_options({}).detail(), HasSubstr("session_id"));
  EXPECT_THAT(check_foreign_options({.session_id = "a:1", .probe_interval = 0s}).detail(),
              HasSubstr("probe_interval"));
  EXPECT_THAT(check_foreign_options({.session_id = "a:1", .probe_interval = 60s}).detail(),
              HasSubstr("above probe_max_interval"));
  EXPECT_TRUE(check_foreign_options({.session_id = "a:1"}).is_ok());
}

}  // namespace
}  // namespace kvmend::kv
