// Streams and listeners of a simulated process.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "env/network.h"
#include "env/sim/core.h"
#include "env/sim/host.h"
#include "env/sim/loop.h"

namespace kvmend::env::sim {

class SimListener;
class SimStream;

/// Single-threaded.
class SimNetwork final : public Network {
 public:
  SimNetwork(SimCore& core, SimHost& host, SimLoop& loop) : core_(core), host_(host), loop_(loop) {}

  Result<std::unique_ptr<Listener>> listen(const Address& at, const StreamOptions& options,
                                           AcceptHandler* handler) override;
  Result<std::unique_ptr<Stream>> connect(const Address& to, const StreamOptions& options,
                                          StreamHandler* handler) override;

  // For the process; see there.

  void hold_accepts(bool on);
  [[nodiscard]] bool accepts_held() const { return accepts_held_; }
  void set_descriptor_limit(std::size_t limit) { descriptor_limit_ = limit; }
  void set_inaccessible(const void* begin, std::size_t length);
  void clear_inaccessible() { inaccessible_.clear(); }
  [[nodiscard]] std::size_t open_descriptors() const { return streams_.size() + listeners_.size(); }
  void shut_down(bool reset);

  // For streams and listeners.

  [[nodiscard]] SimCore& core() { return core_; }
  [[nodiscard]] SimHost& host() { return host_; }
  [[nodiscard]] SimLoop& loop() { return loop_; }
  /// How many bytes of these parts can be touched before one can't.
  [[nodiscard]] std::size_t accessible_bytes(std::span<const iovec> parts) const;
  [[nodiscard]] bool out_of_descriptors() const { return open_descriptors() >= descriptor_limit_; }
  void add(SimStream* stream) { streams_.insert(stream); }
  void remove(SimStream* stream) { streams_.erase(stream); }
  void remove(SimListener* listener) { listeners_.erase(listener); }

 private:
  SimCore& core_;
  SimHost& host_;
  SimLoop& loop_;
  // Ordered by creation, never by address: runs must be repeatable.
  struct ByNumber {
    bool operator()(const SimStream* a, const SimStream* b) const;
    bool operator()(const SimListener* a, const SimListener* b) const;
  };
  std::set<SimStream*, ByNumber> streams_;
  std::set<SimListener*, ByNumber> listeners_;
  bool accepts_held_ = false;
  bool shut_down_ = false;
  std::size_t descriptor_limit_ = SIZE_MAX;
  std::vector<std::pair<std::uintptr_t, std::uintptr_t>> inaccessible_;
};

}  // namespace kvmend::env::sim
