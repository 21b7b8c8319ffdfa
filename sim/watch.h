// Tells an observer which memory the network reads from and writes into. Stands between the code
// under test and the simulated sockets.
#pragma once

#include <cstddef>
#include <memory>

#include "env/network.h"

namespace kvmend::sim {

class MemoryWatch {
 public:
  virtual ~MemoryWatch() = default;
  /// `bytes` of a connection have just been put there.
  virtual void on_received_into(const void* at, std::size_t bytes) = 0;
  /// `bytes` there have just been handed to a connection.
  virtual void on_sent_from(const void* at, std::size_t bytes) = 0;
  /// Code ran that may have moved bytes in memory.
  virtual void on_activity() = 0;
};

/// Decorates the network of one process. Single-threaded.
class WatchedNetwork final : public env::Network {
 public:
  WatchedNetwork(env::Network& inner, MemoryWatch& watch) : inner_(inner), watch_(watch) {}

  Result<std::unique_ptr<env::Listener>> listen(const Address& at,
                                                const env::StreamOptions& options,
                                                env::AcceptHandler* handler) override;
  Result<std::unique_ptr<env::Stream>> connect(const Address& to, const env::StreamOptions& options,
                                               env::StreamHandler* handler) override;

 private:
  env::Network& inner_;
  MemoryWatch& watch_;
};

}  // namespace kvmend::sim
