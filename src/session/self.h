// Who this engine is, as its sessions introduce it.
#pragma once

#include <string>

#include "base/address.h"
#include "kvmend/ids.h"
#include "kvmend/options.h"
#include "wire/control.h"

namespace kvmend::session {

/// Constant after the engine has started. Loop thread.
struct Self {
  Incarnation incarnation;
  std::string session_id;  ///< where we listen, as advertised
  EngineOptions options;

  /// A hello with everything but the lane's own fields filled in.
  [[nodiscard]] wire::Hello hello(wire::LaneKind kind, Incarnation target) const {
    wire::Hello hello;
    hello.kind = kind;
    hello.incarnation = incarnation;
    hello.session_id = session_id;
    hello.target_incarnation = target;
    return hello;
  }
};

}  // namespace kvmend::session
