#include "env/sim/world.h"

#include <utility>

#include "base/check.h"

namespace kvmend::env::sim {

SimWorld::SimWorld(std::uint64_t seed, const SimOptions& options)
    : core_(seed, options), fabric_(core_) {}

SimWorld::~SimWorld() {
  core_.events.clear();  // steps of the script may own streams, which need their hosts
}

SimHost& SimWorld::add_host(const std::string& ip) {
  auto host = std::make_unique<SimHost>(core_, fabric_, ip);
  fabric_.attach(*host);
  return *(hosts_[ip] = std::move(host));
}

SimHost& SimWorld::host(const std::string& ip) {
  const auto found = hosts_.find(ip);
  KVM_CHECK(found != hosts_.end(), "unknown host");
  return *found->second;
}

void SimWorld::after(Duration delay, Task task) {
  core_.events.add(core_.now + delay, std::move(task));
}

bool SimWorld::step() {
  if (core_.events.empty()) return false;
  auto [when, task] = core_.events.pop();
  KVM_CHECK(when >= core_.now, "an event in the past");
  core_.now = when;
  task();
  return true;
}

bool SimWorld::run_until(const std::function<bool()>& predicate, Duration limit) {
  const Time deadline = core_.now + limit;
  while (!predicate()) {
    if (core_.events.empty() || core_.events.next_time() > deadline) {
      core_.now = deadline;
      return predicate();
    }
    step();
  }
  return true;
}

void SimWorld::run_for(Duration duration) {
  run_until([] { return false; }, duration);
}

}  // namespace kvmend::env::sim
