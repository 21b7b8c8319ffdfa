// The composition root of an engine: real clock, sockets and thread, wired to the core.
#pragma once

#include <memory>

#include "engine/facade.h"
#include "kvmend/engine.h"

namespace kvmend::runtime {

/// Starts an engine with its own loop thread, and with its metrics and admin server when
/// `admin_listen` asks for them. Errors as of Engine::create. Any thread.
Result<std::unique_ptr<engine::EngineFacade>> make_engine(const EngineOptions& options);

}  // namespace kvmend::runtime
