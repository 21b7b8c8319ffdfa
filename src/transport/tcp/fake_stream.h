// A connection whose bytes a test moves.
#pragma once

#include "env/network.h"
#include "env/sim/core.h"

namespace kvmend::transport::tcp {

/// Does nothing of its own; tests override `readv` or `writev`.
class FakeStream : public env::Stream {
 public:
  env::IoResult readv(std::span<const iovec>) override { return {}; }
  env::IoResult writev(std::span<const iovec>) override { return {}; }
  void want_read(bool) override {}
  void want_write(bool) override {}
  void set_handler(env::StreamHandler*) override {}
  [[nodiscard]] std::size_t unacknowledged_bytes() const override { return 0; }
  void reset_on_close() override {}
  [[nodiscard]] const Address& peer() const override { return address; }

  env::sim::SimRandom random{1};
  Address address{"10.0.0.2", 7000};
};

}  // namespace kvmend::transport::tcp
