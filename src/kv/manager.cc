#include "kv/link.h"
#include "kvmend/kv.h"

namespace kvmend {

KvManager::~KvManager() {
  link_->close();
}

void KvManager::teardown() {
  link_->close();
}

KvRole KvManager::role() const {
  return link_->role();
}

const KvLayout& KvManager::layout() const {
  return link_->layout();
}

KvManagerStats KvManager::stats() const {
  return link_->stats();
}

}  // namespace kvmend
