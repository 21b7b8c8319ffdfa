// The engine as Python holds it.
#pragma once

#include <nanobind/nanobind.h>
#include <unistd.h>

#include <memory>

#include "kvmend/engine.h"

namespace kvmend::python {

/// An Engine that knows its process: in a forked child its loop thread doesn't exist, so every use
/// there is an error, and destroying it leaks instead of waiting for a thread that isn't there.
class EngineHolder {
 public:
  explicit EngineHolder(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {}
  ~EngineHolder();
  EngineHolder(const EngineHolder&) = delete;
  EngineHolder& operator=(const EngineHolder&) = delete;

  /// Throws StatusError (kInvalidArgument, caller) in a forked child.
  [[nodiscard]] Engine& get() const;
  [[nodiscard]] bool in_child() const { return getpid() != pid_; }

 private:
  std::unique_ptr<Engine> engine_;
  pid_t pid_ = getpid();
};

void bind_engine(nanobind::module_& module);

}  // namespace kvmend::python
