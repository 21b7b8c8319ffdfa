// A simulated process: an environment of its own, which can be stopped, continued and killed.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "env/network.h"
#include "env/sim/core.h"
#include "env/sim/host.h"
#include "env/sim/loop.h"
#include "env/sim/network.h"

namespace kvmend::env::sim {

/// How the kernel ends the connections of a killed process.
enum class KillStyle : std::uint8_t {
  kReset,      ///< all are reset
  kLikeLinux,  ///< closed in order, but for those with unread bytes, which are reset
};

/// Single-threaded. Lives as long as the world, also when it is dead: objects that use its
/// environment may be destroyed later, their calls then have no effect.
class SimProcess {
 public:
  SimProcess(SimCore& core, SimHost& host, std::string name);
  ~SimProcess();

  [[nodiscard]] Env env() { return {loop_, random_, network_}; }
  [[nodiscard]] SimLoop& loop() { return loop_; }
  [[nodiscard]] SimHost& host() { return host_; }
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] bool is_alive() const { return !loop_.is_shut_down(); }

  /// SIGSTOP: its loop stands still; the kernel goes on to accept connections into the backlog and
  /// to buffer bytes. Not from inside its own turn.
  void pause() { loop_.pause(); }
  /// SIGCONT; the gap handler is called first if it was long.
  void resume() { loop_.resume(); }
  /// SIGKILL: its sockets are closed by the kernel, tasks and timers are destroyed unrun. Its owner
  /// destroys the objects that live in it. Also from inside its own turn.
  void kill(KillStyle style = KillStyle::kReset);
  /// Its monotonic clock leaps ahead, as after a pause of its machine.
  void jump_clock(Duration by) { loop_.jump_clock(by); }
  /// Listeners report nothing while held: connections wait in the backlog.
  void hold_accepts(bool on) { network_.hold_accepts(on); }
  /// Streams and listeners it may have open; beyond, connect and listen fail with EMFILE.
  void set_descriptor_limit(std::size_t limit) { network_.set_descriptor_limit(limit); }
  /// I/O from or into this memory reports a fault, as if it were unmapped.
  void set_inaccessible(const void* begin, std::size_t length) {
    network_.set_inaccessible(begin, length);
  }
  void clear_inaccessible() { network_.clear_inaccessible(); }
  [[nodiscard]] std::size_t open_descriptors() const { return network_.open_descriptors(); }

 private:
  SimCore& core_;
  SimHost& host_;
  const std::string name_;
  SimLoop loop_;
  SimRandom random_;
  SimNetwork network_;
};

}  // namespace kvmend::env::sim
