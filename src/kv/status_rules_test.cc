#include "kv/status_rules.h"

#include <gtest/gtest.h>

#include <array>

namespace kvmend::kv {
namespace {

using enum KvStatus;
constexpr std::array kAll = {kFailed, kBootstrapping, kWaitingForInput, kTransferring, kSuccess};

// Every (status, report) pair.
TEST(StatusRules, Table) {
  constexpr std::array<std::array<KvStatus, 5>, 5> kTable = {{
      // reported: Failed, Bootstrapping, WaitingForInput, Transferring, Success
      {kFailed, kFailed, kFailed, kFailed, kFailed},
      {kFailed, kBootstrapping, kWaitingForInput, kTransferring, kSuccess},
      {kFailed, kWaitingForInput, kWaitingForInput, kTransferring, kSuccess},
      {kFailed, kTransferring, kTransferring, kTransferring, kSuccess},
      {kSuccess, kSuccess, kSuccess, kSuccess, kSuccess},
  }};
  for (const KvStatus current : kAll)
    for (const KvStatus next : kAll)
      EXPECT_EQ(next_status(current, next),
                kTable[static_cast<std::size_t>(current)][static_cast<std::size_t>(next)])
          << kv_status_name(current) << " + " << kv_status_name(next);
}

TEST(StatusRules, OnlyTheFirstTwoCreateARoom) {
  for (const KvStatus next : kAll)
    EXPECT_EQ(next_status(std::nullopt, next).has_value(),
              next == kBootstrapping || next == kWaitingForInput);
}

TEST(StatusRules, RanksCombineByTheMinimum) {
  EXPECT_EQ(combine_ranks(std::array{kSuccess, kTransferring, kSuccess}), kTransferring);
  EXPECT_EQ(combine_ranks(std::array{kSuccess, kFailed}), kFailed);
  EXPECT_EQ(combine_ranks(std::array{kSuccess, kSuccess}), kSuccess);
  EXPECT_EQ(combine_ranks({}), kBootstrapping);
}

}  // namespace
}  // namespace kvmend::kv
