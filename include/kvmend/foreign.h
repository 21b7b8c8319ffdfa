// A KV manager whose pages are moved by somebody else's engine (Mooncake's over RDMA, say):
// kvmend's own engine carries the messages, rooms and reasons, the foreign one the bytes.
//
//   auto calls = std::make_shared<ForeignCalls>(options);   // shared with the threads that call
//   auto manager = create_foreign_manager(control_engine, calls, role, layout);
//   // in each of some threads:
//   while (auto call = calls->take(kind, timeout)) calls->finish(call->id, run(*call), "");
//
// What is weaker than with kvmend's own engine: docs/integrations-mooncake.md.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvmend/engine.h"
#include "kvmend/kv.h"

namespace kvmend {

struct ForeignOptions {
  /// Where peers' foreign engines reach this one: what they pass as its name. At most 256 bytes.
  std::string session_id;
  /// Of a blacklisted session; doubles up to the maximum.
  std::chrono::nanoseconds probe_interval = std::chrono::seconds{1};
  std::chrono::nanoseconds probe_max_interval = std::chrono::seconds{30};
  bool probes_enabled = true;
  /// A blacklisted session nobody asked for so long is forgotten, and no longer probed.
  std::chrono::nanoseconds idle_timeout = std::chrono::seconds{600};
};

/// A call of the foreign engine.
struct ForeignCall {
  enum class Kind : std::uint8_t { kWrite, kProbe };
  std::uint64_t id = 0;
  Kind kind = Kind::kWrite;
  std::string session;                 ///< the peer's foreign engine
  std::vector<std::uint64_t> sources;  ///< addresses here
  std::vector<std::uint64_t> targets;  ///< addresses there
  std::vector<std::uint64_t> lengths;
};

struct ForeignStats {
  std::uint64_t blacklisted = 0;         ///< sessions, now
  std::uint64_t calls_running = 0;       ///< writes and probes inside the foreign engine, now
  std::uint64_t undrained = 0;           ///< grants under which a call may still write, now
  std::uint64_t writes_failed = 0;       ///< totals from here on
  std::uint64_t probes = 0;              ///< started
  std::uint64_t probes_unavailable = 0;  ///< the engine has no such call
  std::uint64_t probes_outdated = 0;     ///< passed, but a failure since their start won
  std::uint64_t recoveries = 0;          ///< blacklisted sessions that a probe lifted
  std::uint64_t relapses = 0;            ///< of those: whose next write failed
};

/// The calls between a manager and the threads that run them. Any thread.
class ForeignCalls {
 public:
  /// Return code of a probe that the engine doesn't offer.
  static constexpr int kUnavailable = -1;

  explicit ForeignCalls(ForeignOptions options);
  ~ForeignCalls();
  ForeignCalls(const ForeignCalls&) = delete;
  ForeignCalls& operator=(const ForeignCalls&) = delete;

  /// Waits for a call of that kind. Nothing: `timeout` has passed, or `closed()`.
  [[nodiscard]] std::optional<ForeignCall> take(ForeignCall::Kind kind,
                                                std::chrono::nanoseconds timeout);
  /// A call that was taken has returned `rc` (0: done), or has thrown `error`. Ids that nobody
  /// waits for any more are ignored.
  void finish(std::uint64_t id, int rc, std::string_view error);
  /// No call is handed out any more, and nobody waits for those that run. Idempotent; the manager's
  /// teardown does it.
  void close();
  [[nodiscard]] bool closed() const;
  [[nodiscard]] ForeignStats stats() const;
  [[nodiscard]] const ForeignOptions& options() const;

  class Impl;
  [[nodiscard]] Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

/// As KvManager::create. `control` carries the messages: its session ids name the peers, in senders
/// and receivers too. The layout's buffers must be registered with the foreign engine already.
/// Errors: those of KvManager::create, kInvalidArgument (an option).
[[nodiscard]] Result<std::unique_ptr<KvManager>> create_foreign_manager(
    Engine& control, std::shared_ptr<ForeignCalls> calls, KvRole role, KvLayout layout,
    KvOptions options = {});

}  // namespace kvmend
