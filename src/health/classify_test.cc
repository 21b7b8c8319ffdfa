#include "health/classify.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace kvmend::health {
namespace {

TEST(Classify, OnlyPeerAndLinkEverCount) {
  for (std::uint32_t n = 0; n <= static_cast<std::uint32_t>(Code::kInternal); ++n) {
    for (const Origin origin : {Origin::kNone, Origin::kCaller, Origin::kLocal}) {
      EXPECT_EQ(classify(Status(code_from_wire(n), origin, "")), Verdict::kIgnore) << n;
    }
  }
}

TEST(Classify, R2_ShortageOfLocalResourcesNeverCountsWhoeverWasBlamed) {
  for (const int error : {EADDRNOTAVAIL, EMFILE, ENFILE, ENOMEM, ENOBUFS, EAGAIN}) {
    EXPECT_EQ(classify(Status(Code::kConnectionReset, Origin::kLink, "connect", error)),
              Verdict::kIgnore);
  }
  EXPECT_EQ(classify(Status(Code::kConnectionReset, Origin::kLink, "read", ECONNRESET)),
            Verdict::kStrike);
}

TEST(Classify, R9_R10_MistakesAndBackpressureAreNoStrikes) {
  for (const Code code : {Code::kInvalidArgument, Code::kNotRegistered, Code::kOutOfRange,
                          Code::kPermissionDenied, Code::kResourceExhausted,
                          Code::kDeadlineExceeded, Code::kCancelled, Code::kSessionFailed}) {
    EXPECT_EQ(classify(Status(code, Origin::kPeer, "")), Verdict::kIgnore);
  }
}

TEST(Classify, WhatThePeerOrTheLinkDidCounts) {
  EXPECT_EQ(classify(Status(Code::kConnectionRefused, Origin::kPeer, "", ECONNREFUSED)),
            Verdict::kDefinite);
  EXPECT_EQ(classify(Status(Code::kPeerSilent, Origin::kPeer, "")), Verdict::kDefinite);
  EXPECT_EQ(classify(Status(Code::kPeerRestarted, Origin::kPeer, "")), Verdict::kRestart);
  EXPECT_EQ(classify(Status(Code::kProtocolError, Origin::kPeer, "")), Verdict::kStrike);
  EXPECT_EQ(classify(Status(Code::kUnavailable, Origin::kLink, "", EHOSTUNREACH)),
            Verdict::kStrike);
  EXPECT_EQ(classify(Status(Code::kUnavailable, Origin::kPeer, "")), Verdict::kIgnore);
}

}  // namespace
}  // namespace kvmend::health
