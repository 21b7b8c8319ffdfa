#include "env/errors.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace kvmend::env {
namespace {

// Case R2: shortage of a local resource never counts against a peer.
TEST(Errors, R2_LocalShortagesAreLocal) {
  for (int e : {EADDRNOTAVAIL, EAGAIN, EMFILE, ENFILE, ENOBUFS, ENOMEM}) {
    const Status status = status_of_errno(e, "x");
    EXPECT_EQ(status.code(), Code::kResourceExhausted) << e;
    EXPECT_EQ(status.origin(), Origin::kLocal) << e;
    EXPECT_EQ(status.sys_errno(), e);
  }
}

TEST(Errors, TellsPeerAndLinkApart) {
  EXPECT_EQ(status_of_errno(ECONNREFUSED, "").origin(), Origin::kPeer);
  EXPECT_EQ(status_of_errno(ECONNRESET, "").code(), Code::kConnectionReset);
  EXPECT_EQ(status_of_errno(EPIPE, "").origin(), Origin::kLink);
  EXPECT_EQ(status_of_errno(ETIMEDOUT, "").code(), Code::kPeerSilent);
  EXPECT_EQ(status_of_errno(EHOSTUNREACH, "").code(), Code::kUnavailable);
  EXPECT_EQ(status_of_errno(ENETUNREACH, "").origin(), Origin::kLink);
  EXPECT_EQ(status_of_errno(9999, "").origin(), Origin::kLink);
}

TEST(Errors, ListenFailuresAreLocal) {
  EXPECT_EQ(status_of_listen_errno(EADDRINUSE, "").code(), Code::kResourceExhausted);
  EXPECT_EQ(status_of_listen_errno(EADDRNOTAVAIL, "").code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace kvmend::env
