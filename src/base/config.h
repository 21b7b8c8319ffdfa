// Every named maximum of kvmend in one place. Options that a user may change are in
// include/kvmend/options.h; these are the caps behind them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace kvmend::config {

using namespace std::chrono_literals;

// memory
inline constexpr std::size_t kMaxRegions = 65'536;
inline constexpr std::size_t kMaxGrants = 131'072;
inline constexpr std::size_t kEndedGrantsRemembered = 65'536;
inline constexpr std::size_t kMaxGrantComponents = 32;
inline constexpr std::size_t kMaxGrantBuffers = 16'384;  // over all components
inline constexpr std::size_t kMaxLandedChunksPerGrant = 65'536;

// connections, per engine
inline constexpr std::size_t kMaxInboundLanes = 8'192;
inline constexpr std::size_t kMaxPendingHandshakes = 512;  // accepted, no hello yet: oldest is shed
inline constexpr std::size_t kMaxInboundLanesPerPeer = 64;
inline constexpr std::size_t kMaxInboundProbeLanes = 256;
inline constexpr std::size_t kMaxInboundProbeLanesPerHost = 64;  // address of the prober
inline constexpr std::size_t kMaxInboundPeers = 65'536;  // remembered incarnations, ~0.3 KiB each
inline constexpr std::size_t kMaxSessions = 65'536;
inline constexpr auto kHandshakeDeadline = 5s;   // silent inbound connection
inline constexpr auto kProbeLaneLifetime = 30s;  // an inbound probe
inline constexpr auto kAcceptRetry = 100ms;      // connections can't be taken: no descriptors
inline constexpr auto kInboundIdle = 60s;        // inbound epoch without any byte
inline constexpr auto kForgetPeerAfter = 3600s;  // remembered epoch of a gone initiator
inline constexpr auto kForgetProvenAfter = 60s;  // the same, while new ones need the place

/// Between two log lines of a kind that a peer can provoke.
inline constexpr auto kLogInterval = 100ms;

// one lane
inline constexpr std::size_t kStagingBytes = 32'768;   // header + slices of the largest frame
inline constexpr std::size_t kReadAheadBytes = 8'192;  // holds a whole small write
inline constexpr std::size_t kMaxAckBacklogBytes = 1U << 20;   // then the lane stops reading
inline constexpr std::size_t kMaxQueuedReads = 64;             // read requests waiting, per lane
inline constexpr std::size_t kMaxQueuedReadSlices = 1U << 20;  // and their slices, of all lanes
inline constexpr std::size_t kMaxQueuedPulls = 256;            // chunks being copied, per lane
inline constexpr std::size_t kMaxLoans = 256;                  // reads the peer copies, per lane
inline constexpr std::size_t kMaxControlBacklogBytes = 64U << 20;
inline constexpr std::size_t kReadBudgetPerTurn = 4U << 20;  // bytes per lane and turn of the loop
inline constexpr std::size_t kWriteBudgetPerTurn = 4U << 20;
inline constexpr std::size_t kSmallTurnBytes = 64U << 10;  // moves that are worth a spin afterwards

// staging of small slices, per frame of a room's pages (docs/decisions/0020-staging-in-the-lane.md)
inline constexpr std::size_t kStageFromSlices = 16;
inline constexpr std::size_t kStageReceiveBytes = 256U << 10;  // one read into the shared buffer

// local transport, per engine
inline constexpr std::size_t kLocalChunkSlots = 65'536;     // chunks whose memory is open to peers
inline constexpr std::size_t kMaxLocalSegments = 256;       // pools shown to one peer
inline constexpr std::size_t kMaxLocalLinks = 4'096;        // peers of this host, each way
inline constexpr std::size_t kInlinePullBytes = 64U << 10;  // copied on the loop at once
inline constexpr std::size_t kInlinePullBudget = 256U << 10;  // and so much in one turn of the loop
inline constexpr std::size_t kPoolCopyStepBytes = 256U << 10;
inline constexpr std::size_t kForeignCopyStepBytes = 1U << 20;
inline constexpr std::size_t kSmallCopyStepBytes = 256U << 10;  // of pieces that are picked out
// A chunk that the peer copies costs both sides some microseconds, so those of long transfers are
// long; each is a part of what is left, so that all who copy end together.
inline constexpr std::uint32_t kLongPullBytes = 4U << 20;
inline constexpr std::uint64_t kLongPullParts = 16;
inline constexpr auto kWithdrawLook = 1ms;    // waited for a peer's copy step: is the peer stopped?
inline constexpr auto kWithdrawWait = 250ms;  // and then it is left alone, stopped or not

// transfers: beyond these a new one fails at once, which says nothing about its peer
inline constexpr std::size_t kMaxTransfersPerSession = 65'536;  // queued or in flight
inline constexpr std::size_t kMaxTransfers = 524'288;           // of all sessions
inline constexpr std::size_t kMaxPieces = 64U << 20;            // of all transfers, 40 bytes each

// transfers, per session
inline constexpr std::size_t kMaxSlicesPerTransfer = 16U << 20;
inline constexpr std::uint32_t kMaxChecksumRetries = 8;  // of one chunk
inline constexpr auto kReconnectFirst = 20ms;            // after a shortage of our own
inline constexpr auto kReconnectMax = 1000ms;

// probes
inline constexpr std::uint32_t kScratchBytes = 16'384;

// death
inline constexpr std::uint64_t kMemoryKeeperFrom = 64U << 20;  // registered bytes

// shutdown
inline constexpr auto kDrainPoll = 5ms;
/// A condition variable adds its timeout to a clock: anything longer would overflow.
inline constexpr std::chrono::nanoseconds kLongestWait = std::chrono::hours(24 * 365);

// control
inline constexpr std::size_t kMaxNotifies = 65'536;         // received, not yet fetched
inline constexpr std::size_t kMaxNotifyBytes = 64U << 20U;  // of them together

// KV manager
inline constexpr std::size_t kMaxRooms = 65'536;             // live, per manager
inline constexpr std::size_t kMaxWritersPerRoom = 256;       // prefill engines of one room
inline constexpr std::size_t kMaxDestinationsPerRoom = 256;  // decode engines of one writer's room
inline constexpr std::size_t kMaxPagesPerRoom = 1'000'000;   // all components: fits one message
inline constexpr std::size_t kMaxChunksPerRoom = 65'536;
inline constexpr std::size_t kMaxPiecesPerWrite = 16U << 20;  // merged runs of one `send`
inline constexpr std::size_t kMaxKvPeers = 4'096;             // registered; the longest unused goes
inline constexpr std::size_t kMaxKvClaims = 64;               // registrations not yet proven
inline constexpr std::size_t kMaxAnnouncedRooms = 65'536;     // announced, no sender yet
inline constexpr std::size_t kMaxAnnouncedBytes = 256U << 20;
inline constexpr std::size_t kMaxAnnouncedRoomsPerPeer = 16'384;
inline constexpr std::size_t kMaxAnnouncedBytesPerPeer = 64U << 20;
inline constexpr std::size_t kMaxAbortNotices = 65'536;  // told, not yet acknowledged by all
inline constexpr std::size_t kFinishedRoomsRemembered = 16'384;
inline constexpr auto kMaxRoomDeadline = 168h;
inline constexpr auto kKvRepeatFirst = 500ms;  // a message that nobody answered
inline constexpr auto kKvRepeatMax = 8s;
inline constexpr auto kKvAbortRepeatFor = 30s;       // an abort that nobody acknowledges
inline constexpr auto kKvAskRefusedAgain = 5s;       // a layout that couldn't be mapped
inline constexpr auto kKvReasonGrace = 250ms;        // a refused write: decode's reason is near
inline constexpr std::size_t kMaxCoverages = 1'024;  // sets of prefill engines, summed up
inline constexpr std::uint32_t kForeignCallsPerSession = 2;  // of a foreign engine, at a time
inline constexpr std::size_t kForeignSlicesPerCall = 1'024;  // Mooncake fails beyond 2,048
inline constexpr std::uint64_t kForeignBytesPerCall = 64U << 20U;
inline constexpr int kForeignProbeThrew = -1'000;  // stands for the code of a probe that threw

}  // namespace kvmend::config
