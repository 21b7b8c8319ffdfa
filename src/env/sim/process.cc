#include "env/sim/process.h"

namespace kvmend::env::sim {

SimProcess::SimProcess(SimCore& core, SimHost& host, std::string name)
    : core_(core),
      host_(host),
      name_(std::move(name)),
      loop_(core, host.clock_offset()),
      random_(core.random.next()),
      network_(core, host, loop_) {
  core_.note("start", Trace::hash(name_));
}

SimProcess::~SimProcess() = default;

void SimProcess::kill(KillStyle style) {
  if (!is_alive()) return;
  core_.note("kill", Trace::hash(name_));
  network_.shut_down(style == KillStyle::kReset);
  loop_.shut_down();
}

}  // namespace kvmend::env::sim
