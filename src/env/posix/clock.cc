#include "env/posix/clock.h"

#include <sys/random.h>

#include <bit>
#include <cerrno>
#include <ctime>

#include "base/check.h"

namespace kvmend::env::posix {
namespace {

Duration read_clock(clockid_t id) {
  timespec ts{};
  KVM_CHECK(clock_gettime(id, &ts) == 0);
  return std::chrono::seconds(ts.tv_sec) + Duration(ts.tv_nsec);
}

}  // namespace

Time monotonic_now() {
  return Time(read_clock(CLOCK_MONOTONIC));
}

Duration boot_time() {
  return read_clock(CLOCK_BOOTTIME);
}

PosixRandom::PosixRandom() : state_{} {
  ssize_t got = 0;
  do {
    got = getrandom(state_.data(), sizeof state_, 0);  // up to 256 bytes come whole
  } while (got < 0 && errno == EINTR);
  KVM_CHECK(got == static_cast<ssize_t>(sizeof state_), "getrandom failed");
  state_[0] |= 1;  // all zeros would be a fixed point
}

std::uint64_t PosixRandom::next() {
  const std::uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
  const std::uint64_t t = state_[1] << 17;
  state_[2] ^= state_[0];
  state_[3] ^= state_[1];
  state_[1] ^= state_[2];
  state_[0] ^= state_[3];
  state_[2] ^= t;
  state_[3] = std::rotl(state_[3], 45);
  return result;
}

}  // namespace kvmend::env::posix
