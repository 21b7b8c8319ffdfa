// Options of an engine. Every default is what the benchmarks and fault tests run with.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace kvmend {

/// What happens to a request whose session is blacklisted.
enum class FailedSessionPolicy : std::uint8_t {
  kPark,      ///< it waits until the session recovers, or until min(its deadline, park_max)
  kFailFast,  ///< it fails at once with the session's reason
};

/// TCP tuning. Zero and empty mean "let kvmend choose".
struct TcpOptions {
  int data_lanes = 1;                  ///< connections for pages per session, 1 to 16
  std::string congestion;              ///< TCP_CONGESTION, e.g. "cubic"; empty: cubic on loopback
  int send_buffer_bytes = 4 << 20;     ///< SO_SNDBUF
  int receive_buffer_bytes = 4 << 20;  ///< SO_RCVBUF
  std::chrono::milliseconds user_timeout{10'000};  ///< TCP_USER_TIMEOUT
  std::uint64_t pacing_bytes_per_second = 0;       ///< of each connection; 0: as fast as it goes
  /// Slices of rooms with a smaller mean length are gathered before they are sent, where they lie
  /// close enough together; 0: none, at most 1 MiB. In host memory it lost wherever it was measured
  /// (docs/decisions/0020-staging-in-the-lane.md).
  std::uint64_t stage_below_bytes = 0;
};

/// Whether peers of the same host and user copy straight from each other's memory.
enum class LocalMode : std::uint8_t {
  kAuto,  ///< where the system permits it; else by tcp, said once in the log
  kOff,
};

/// When a session is blacklisted and how it comes back.
struct RecoveryOptions {
  bool probe = true;                                   ///< off: only a hello or registration lifts
  std::chrono::milliseconds progress_deadline{2'000};  ///< outstanding bytes without a sign of life
  std::chrono::milliseconds heartbeat{1'000};          ///< idle sessions are pinged this often
  std::chrono::milliseconds connect_deadline{2'000};   ///< connect and handshake of one attempt
  std::uint32_t failure_threshold = 3;                 ///< failures within `failure_window`
  std::chrono::milliseconds failure_window{10'000};
  std::chrono::milliseconds probe_first{100};
  std::chrono::milliseconds probe_max{5'000};
  std::chrono::milliseconds probe_demand{100};      ///< the longest interval while requests wait
  std::chrono::milliseconds probe_deadline{1'000};  ///< of one probe
  std::uint32_t probes_in_flight = 512;
  std::uint32_t probes_per_second = 2'000;
  std::uint32_t probation_transfers = 3;
  std::chrono::milliseconds idle_timeout{600'000};  ///< unused sessions are retired
  FailedSessionPolicy policy = FailedSessionPolicy::kPark;
  std::chrono::milliseconds park_max{0};  ///< 0: as long as the request's deadline
  /// The same while the peer's host refuses connections: its process is gone. 0: as `park_max`.
  std::chrono::milliseconds refused_park_max{0};
};

struct EngineOptions {
  std::string host = "127.0.0.1";  ///< numeric address to listen at
  std::uint16_t port = 0;          ///< 0: any free port
  std::string advertise;           ///< address that peers use for this engine; empty: host
  /// Listening anywhere but on loopback needs this until peers authenticate each other.
  bool insecure = false;
  std::chrono::milliseconds default_deadline{30'000};
  /// Payload of one frame, 4 KiB to 16 MiB. Where the peer copies by itself long transfers have up
  /// to 4 MiB in one (a quarter of the window at most).
  std::uint32_t chunk_bytes = 512U << 10;
  std::uint64_t window_bytes = 64ULL << 20;  ///< unacknowledged bytes per session
  std::uint32_t window_chunks = 1024;        ///< unacknowledged chunks per session
  std::chrono::microseconds spin{50};        ///< busy-wait before blocking, under traffic only
  std::chrono::milliseconds shutdown_grace{5'000};
  /// Where /metrics, /healthz, /sessions and the page are served, e.g. "127.0.0.1:0"; empty:
  /// nowhere.
  std::string admin_listen;
  LocalMode local = LocalMode::kAuto;
  /// From 64 MiB of registered memory on, a helper process shares this one's memory and nothing
  /// else, so that peers learn of its death within milliseconds instead of after the kernel has
  /// freed all of it (see docs/operations.md). Off: no such process.
  bool memory_keeper = true;
  TcpOptions tcp;
  RecoveryOptions recovery;
};

}  // namespace kvmend
