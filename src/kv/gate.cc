#include "kv/gate.h"

namespace kvmend {

KvGate::KvGate() : state_(std::make_shared<kv::GateState>()) {}

void KvGate::open() {
  state_->open();
}

bool KvGate::is_open() const {
  return state_->is_open();
}

}  // namespace kvmend
