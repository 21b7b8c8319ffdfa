// Deliberate faults for the simulation, to show that its checkers bite. A safety rule's code asks
// `KVM_SABOTAGE(name)`: constant false everywhere but in the second build of the libraries that
// kvmend-sim links (docs/simulation.md).
#pragma once

#ifdef KVMEND_SABOTAGE

#include <cstdint>

// One row per fault: how kvmend-sim --break names it.
#define KVM_SABOTAGES(X)          \
  X(no_epoch_fence)               \
  X(old_hello_accepted)           \
  X(no_incarnation_check)         \
  X(no_writer_check)              \
  X(stale_region_accepted)        \
  X(expired_grant_honoured)       \
  X(grant_checked_once_per_frame) \
  X(late_retry_after_success)     \
  X(retry_counted_twice)          \
  X(landed_chunk_written_again)   \
  X(checksum_ignored)             \
  X(ack_before_landing)           \
  X(source_read_after_cancel)     \
  X(success_before_landing)       \
  X(release_on_timeout)           \
  X(quarantine_on_timeout)        \
  X(no_deadline)                  \
  X(sequential_probes)            \
  X(heal_by_clock)                \
  X(control_probe_only)           \
  X(inbound_lanes_kept)           \
  X(pair_split)

namespace kvmend::sabotage {

enum class Fault : std::uint8_t {
  none,
#define KVM_SABOTAGE_ENUM(name) name,
  KVM_SABOTAGES(KVM_SABOTAGE_ENUM)
#undef KVM_SABOTAGE_ENUM
};

/// The fault of the world that this thread runs.
inline constinit thread_local Fault active = Fault::none;

}  // namespace kvmend::sabotage

#define KVM_SABOTAGE(name) (::kvmend::sabotage::active == ::kvmend::sabotage::Fault::name)

#else

#define KVM_SABOTAGE(name) false

#endif
