#include "sim/breaks.h"

#include <array>

#include "base/check.h"
#include "base/sabotage.h"

namespace kvmend::sim {
namespace {

constexpr std::array kBreaks{
    Break{"no_epoch_fence", "raw", "older lanes stay open when a new epoch is accepted"},
    Break{"old_hello_accepted", "hello", "an epoch at or below the last one is accepted"},
    Break{"no_incarnation_check", "raw_restart", "a hello or plan for a dead process is accepted"},
    Break{"no_writer_check", "rooms", "a grant may be used by anybody"},
    Break{"stale_region_accepted", "reregister", "a region's generation isn't compared"},
    Break{"expired_grant_honoured", "rooms", "a grant's end is ignored"},
    Break{"grant_checked_once_per_frame", "kv_abort", "not before every read into pages"},
    Break{"late_retry_after_success", "lost_acks", "a completed grant stays open"},
    Break{"retry_counted_twice", "lost_acks", "a chunk that comes again counts again"},
    Break{"landed_chunk_written_again", "corrupt_retries", "a copy of a landed chunk is put in"},
    Break{"checksum_ignored", "corrupt", "bytes that don't match are acknowledged"},
    Break{"ack_before_landing", "rooms", "a write is acknowledged when its header is here"},
    Break{"source_read_after_cancel", "kv_abort", "frames of a cancelled transfer go on"},
    Break{"success_before_landing", "kv", "decode believes what prefill declares"},
    Break{"release_on_timeout", "kv_abort", "a failed room's pages are freed without revoking"},
    Break{"quarantine_on_timeout", "one_sided", "pages are given back without a proof"},
    Break{"no_deadline", "raw", "deadlines of transfers are forgotten"},
    Break{"sequential_probes", "returning", "one probe at a time"},
    Break{"heal_by_clock", "raw", "a failed session is let in when time has passed"},
    Break{"control_probe_only", "small_only", "a handshake is proof enough"},
    Break{"inbound_lanes_kept", "raw_restart", "a silent peer's lanes are never closed"},
    Break{"pair_split", "pair", "the healthy ranks of a pair are served while another is failed"},
};

sabotage::Fault fault_of(std::string_view name) {
#define KVM_SABOTAGE_NAME(fault) \
  if (name == #fault) return sabotage::Fault::fault;
  KVM_SABOTAGES(KVM_SABOTAGE_NAME)
#undef KVM_SABOTAGE_NAME
  return sabotage::Fault::none;
}

}  // namespace

std::span<const Break> breaks() {
  return kBreaks;
}

bool is_break(std::string_view name) {
  return fault_of(name) != sabotage::Fault::none;
}

Broken::Broken(std::string_view name) {
  sabotage::active = fault_of(name);
}

Broken::~Broken() {
  sabotage::active = sabotage::Fault::none;
}

}  // namespace kvmend::sim
