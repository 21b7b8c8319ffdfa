// The composition root of an engine: real clock, sockets and thread, wired to the core.
#pragma once

#include <memory>

#include "engine/facade.h"
#include "kvmend/engine.h"
#include "session/events.h"

namespace kvmend::runtime {

/// Starts an engine with its own loop thread. `metrics` (optional) must outlive it; its methods run
/// on the loop thread. Errors as of Engine::create. Any thread.
Result<std::unique_ptr<engine::EngineFacade>> make_engine(const EngineOptions& options,
                                                          session::SessionEvents* metrics);

}  // namespace kvmend::runtime
