#include "wire/checksum.h"

#include <new>

#ifndef XXH_INLINE_ALL
#define XXH_INLINE_ALL
#endif
#include <xxhash.h>

namespace kvmend::wire {

static_assert(sizeof(XXH3_state_t) <= sizeof(Checksum) && alignof(XXH3_state_t) <= 64);

void Checksum::reset() {
  auto* state = new (state_) XXH3_state_t;
  XXH3_INITSTATE(state);
  XXH3_64bits_reset(state);
}

void Checksum::update(Bytes piece) {
  XXH3_64bits_update(std::launder(reinterpret_cast<XXH3_state_t*>(state_)), piece.data(),
                     piece.size());
}

std::uint64_t Checksum::value() const {
  return XXH3_64bits_digest(std::launder(reinterpret_cast<const XXH3_state_t*>(state_)));
}

}  // namespace kvmend::wire
