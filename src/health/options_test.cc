#include "health/options.h"

#include <gtest/gtest.h>

namespace kvmend::health {
namespace {

TEST(HealthOptions, DefaultsAreValid) {
  EXPECT_TRUE(validate(HealthOptions{}).is_ok());
}

TEST(HealthOptions, ErrorsNameTheOptionAndBlameTheCaller) {
  HealthOptions options;
  options.probe_max_interval = 50ms;
  const Status status = validate(options);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_EQ(status.origin(), Origin::kCaller);
  EXPECT_NE(status.detail().find("probe_max_interval"), std::string::npos);
}

TEST(HealthOptions, ZerosThatWouldSpinOrDivideAreRefused) {
  HealthOptions options;
  options.probes_per_second = 0;
  EXPECT_FALSE(validate(options).is_ok());
  options = {};
  options.probation_decay = 0s;
  EXPECT_FALSE(validate(options).is_ok());
  options = {};
  options.max_overlapping_probes = 0;
  EXPECT_FALSE(validate(options).is_ok());
}

}  // namespace
}  // namespace kvmend::health
